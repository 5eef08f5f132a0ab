"""New videos: listed, decoded and encoded just as the videos of a store were."""

from __future__ import annotations

import os
from collections.abc import Generator, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np
from torch import nn

from clipset.backbones.runtime import Engine, import_openvino, open_engine
from clipset.clips.sampling import Window, WindowGrid
from clipset.data.catalog import Catalog, Video, read_catalog_table, read_folder
from clipset.data.tables import SUFFIXES
from clipset.devices import find_device
from clipset.errors import BackboneError, CatalogError, VideoError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import decode_videos
from clipset.features.encode import EncodedVideo, encode_chunks, encode_videos
from clipset.features.extract import decode_request, load_network, name_to_load
from clipset.features.ledger import LedgerEntry
from clipset.features.store import Manifest
from clipset.progress import bar, log
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import ModelInput, make_clips
from clipset.text import name_text, path_text, unique_ids

Sources = Catalog | str | Path | Sequence[str | Path]


def list_new_videos(sources: Sources) -> Catalog:
    """The videos of some paths, each once, in order.

    The id of a file is its path, also in a folder; a catalog's videos keep their ids. A file that
    does not exist is listed, too: decoding it gives the reason.
    """
    if isinstance(sources, Catalog):
        return sources
    paths = [Path(sources)] if isinstance(sources, str | Path) else [Path(path) for path in sources]
    if not paths:
        raise CatalogError("no video is given; give files, folders or a catalog")
    videos_by_id: dict[str, Video] = {}
    for video in _read_videos(paths):
        first_video = videos_by_id.setdefault(video.id, video)
        if first_video.path.absolute() != video.path.absolute():
            raise CatalogError(
                f"{first_video.path} and {video.path} are both called {video.id!r}; "
                f"give one of them another id"
            )
    return Catalog(name=name_text(paths[0].name) or "videos", videos=tuple(videos_by_id.values()))


def _read_videos(paths: Sequence[Path]) -> Iterable[Video]:
    id_by_path = unique_ids(path_text(path) for path in paths)
    for path in paths:
        if os.path.isdir(path):  # noqa: PTH112 (never raises)
            for video in read_folder(path):
                yield replace(video, id=str(Path(id_by_path[path_text(path)]) / video.id))
        elif path.suffix.lower() in SUFFIXES:
            yield from read_catalog_table(path)
        else:
            yield Video(id=id_by_path[path_text(path)], path=path)


@dataclass(frozen=True, slots=True, kw_only=True)
class VideoClips:
    """The regular clips of a new video, or of a window of it; or why it could not be read."""

    video: Video
    clips: ClipBatch | None = None
    duration: float = 0.0
    frames: int = 0  # in the file
    window: Window | None = None
    reason: str | None = None


class ClipReader:
    """Decodes and encodes new videos; the backbone is loaded with the first one.

    `model` is the model that the clips are for. `backbone` names the store's backbone if that is a
    file or a model of the hub.
    """

    def __init__(
        self,
        manifest: Manifest,
        model: ModelInput | None = None,
        *,
        network: nn.Module | None = None,
        device: str = "auto",
        workers: int | None = None,
        timeout: float | None = None,
        backbone: str | None = None,
    ) -> None:
        self.manifest, self.model, self.device = manifest, model, device
        self.config = ExtractConfig(workers=workers, timeout=timeout)
        self.request = replace(decode_request(manifest), random=False)
        self._network = network
        self._name = "" if network is not None else name_to_load(manifest, backbone)

    @cached_property
    def engine(self) -> Engine:
        """The backbone, ready to run."""
        network = self._network or load_network(self.manifest, self._name)
        engine_name = self.manifest.made_by.get("engine", "auto")
        on_cpu = self.device == "auto" or find_device(self.device).type == "cpu"
        if engine_name == "openvino" and not (on_cpu and import_openvino()):
            engine_name = "auto"  # engines agree to a few millionths
        return open_engine(self.manifest.backbone, network, device=self.device, engine=engine_name)

    def read(self, videos: Sequence[Video]) -> list[VideoClips]:
        """The regular clips of every video, in order."""
        clips_by_index: dict[int, VideoClips] = {}
        engine = self.engine
        with (
            bar("encoding", len(videos), "videos") as advance,
            decode_videos(videos, self.request, self.config) as decode_results,
        ):
            for video_index, encoded_video in encode_videos(engine, decode_results):
                clips_by_index[video_index] = self._video_clips(videos[video_index], encoded_video)
                advance()
        return [clips_by_index[video_index] for video_index in range(len(videos))]

    def read_windows(
        self, videos: Sequence[Video], grid: WindowGrid | Window
    ) -> Generator[VideoClips]:
        """The regular clips of the windows of videos, as if each window were a video of its own.

        Windows of one video come in the order of time, among those of others.
        """
        engine = self.engine
        if isinstance(grid, Window):
            request = replace(self.request, window=grid)
        else:
            request = replace(self.request, grid=grid)
        with decode_videos(videos, request, self.config) as decode_results:
            for video_index, encoded_window in encode_chunks(engine, decode_results):
                yield self._video_clips(videos[video_index], encoded_window)

    def _video_clips(
        self, video: Video, encoded: EncodedVideo | VideoError | BackboneError
    ) -> VideoClips:
        """The clips of a video or window as if they were read from a store, with its precision."""
        if not isinstance(encoded, EncodedVideo):
            return VideoClips(video=video, reason=str(encoded))
        clip_rows, facts = encoded.rows, encoded.facts
        window, duration = facts.window, facts.duration
        if window is not None:
            duration = window.end - window.start
        elif (damage := encoded.update(LedgerEntry(ordinal=0, id=video.id)).damage) is not None:
            log(f"damaged {video.id}: {damage}")
        with np.errstate(over="ignore"):
            features = clip_rows.features.astype(self.manifest.dtype).astype(np.float32)
        if not np.isfinite(features).all():
            largest_value, dtype = np.abs(clip_rows.features).max(), self.manifest.dtype
            return VideoClips(
                video=video, reason=f"a feature of {largest_value:g} overflows the run's {dtype}"
            )
        clips = make_clips(features[None], clip_rows.boxes[None], np.array([duration]), self.model)
        return VideoClips(
            video=video, clips=clips, duration=duration, frames=facts.frames_found, window=window
        )
