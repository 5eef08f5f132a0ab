"""ServerState: what the endpoints use, opened with the run and closed with the server."""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import replace
from functools import cached_property, partial
from pathlib import Path

import numpy as np
from jaxtyping import Float
from safetensors import SafetensorError

from clipset.errors import ClipsetError, RunError, error_line
from clipset.features.store import IMPORTED
from clipset.labelling import LabelLoop
from clipset.process.locks import exclusive
from clipset.report.video_map import map_layout
from clipset.representation.derived import read_derived, vectors_checksum, write_derived
from clipset.retrieval import SearchIndex, VideoSearch
from clipset.retrieval.index import KINDS
from clipset.web.media import MediaCache, MediaLibrary
from clipset.web.predictions import RunPredictions
from clipset.web.run_data import RunData
from clipset.web.uploads import Uploads

CACHE_FOLDER = "cache"
CACHE_BYTES = 2 << 30
MAP_FILE = "map.safetensors"
PENDING, READY, NONE = "pending", "ready", "none"


class ServerState:
    """A run that is served: its data, media, map and predictions.

    The run's folder is locked meanwhile. A run that cannot be written is served, too: its cache is
    then in a temporary folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        device: str = "auto",
        backbone: str | None = None,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        if not folder.is_dir():
            raise RunError(f"{folder} not found; give the folder of a finished run")
        self._resources = ExitStack()
        try:
            self.is_writable = os.access(folder, os.W_OK)
            if self.is_writable:
                self._resources.enter_context(exclusive(folder))
                self.cache_folder = folder / CACHE_FOLDER
            else:
                temporary = tempfile.TemporaryDirectory(prefix="clipset-serve-")
                self.cache_folder = Path(self._resources.enter_context(temporary))
            self.run = RunData(folder, device=device, backbone=backbone)
            index = SearchIndex(folder, self.run.store, self.run.vectors)
            self.search = VideoSearch(folder, device=device, backbone=backbone, index=index)
            self.labels = LabelLoop(folder, self.run.vectors)
            self._resources.callback(self.labels.close)
            cache = MediaCache(self.cache_folder / "media", cache_bytes)
            entries = self.run.store.entries
            if self.run.store.manifest.backbone.name == IMPORTED:  # their files are features
                entries = [replace(entry, file=None) for entry in entries]
            self.media = MediaLibrary(self.run.videos, entries, cache, self.run.store.folder)
            self._resources.callback(self.media.close)
        except BaseException:
            self._resources.close()
            raise
        self.uploads = Uploads(self.media, self.run.trained, self.search.index)
        self.predictions = RunPredictions(self.run)
        self.map: tuple[Float[np.ndarray, "N 2"], str] | None = None  # from 0 to 1; method
        self.background = {"map": PENDING, "predictions": PENDING}
        self._thread = threading.Thread(target=self._prepare, daemon=True, name="prepare")

    @cached_property
    def can_search_text(self) -> bool:
        """Whether the run's backbone has a text tower that can be loaded."""
        return _attempt(lambda: self.search.text_tower) == READY

    def start(self) -> None:
        """Begin to compute what the first paint does not need."""
        self._thread.start()

    def close(self) -> None:
        """End the workers and unlock the run."""
        self._resources.close()

    def _prepare(self) -> None:
        """The stored predictions, the map, the index of search, then the run's classifier."""
        _attempt(self.predictions.read_stored)
        _attempt(lambda: self.labels.queue(1))  # so that the first request does not wait for it
        self.background["map"] = _attempt(self._open_map)
        for kind in KINDS:
            _attempt(partial(self.search.index.prepare, kind))
        outcome = _attempt(self.predictions.compute)
        if self.predictions.probabilities is not None:
            outcome = READY  # at least the stored ones
        elif outcome == READY:
            outcome = NONE
        self.background["predictions"] = outcome

    def _open_map(self) -> None:
        """The map of the vectors, computed once for the run."""
        path, source = self.cache_folder / MAP_FILE, vectors_checksum(self.run.folder / "vectors")
        kept = read_derived(path)
        if kept is not None and kept[1].get("source") == source:
            self.map = kept[0]["positions"], kept[1]["kind"]
            return
        self.map = positions, kind = map_layout(self.run.vectors.pooled)
        write_derived(path, {"positions": positions}, {"source": source, "kind": kind})


def _attempt(work: Callable[[], object]) -> str:
    """Do some work of the background; what it came to."""
    try:
        work()
    except (ClipsetError, SafetensorError, OSError, KeyError) as error:
        return str(error) if isinstance(error, ClipsetError) else error_line(error)
    return READY
