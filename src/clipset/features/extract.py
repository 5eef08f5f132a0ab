"""Catalog + sampling + backbone → store, on one machine.

Worker processes decode and cut, the backbone runs here, and a writer commits the videos in the order of
the catalog. What is committed is never touched again, so a killed extraction goes on where it stopped
and ends with the same bytes as one that ran through.
"""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from types import TracebackType

import numpy as np
from clipset.backbones.engine import Engine, open_engine
from jaxtyping import Float

from clipset.backbones.registry import load_backbone
from clipset.config import write_json
from clipset.errors import StoreError
from clipset.features.arrays import GrowingArray
from clipset.features.config import ExtractConfig
from clipset.features.cutting import CutRequest, CutVideo
from clipset.features.ledger import Entry, Ledger
from clipset.features.pool import Outcome, cut_videos
from clipset.features.store import KINDS, FeatureStore, Kind, Manifest, checksum_of, read_manifest
from clipset.progress import bar, say
from clipset.videos.catalog import Catalog, write_catalog

COMMIT_SECONDS = 1.0  # finished videos wait at most this long for their transaction


def extract(
    catalog: Catalog,
    folder: Path,
    config: ExtractConfig | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
) -> FeatureStore:
    """Store the clip features of every video of the catalog; goes on where it stopped before."""
    config = config or ExtractConfig()
    spec, network = load_backbone(
        config.backbone, frames=config.frames, stride=config.stride, size=config.size
    )
    manifest = Manifest(
        backbone=spec,
        sampling=config.sampling,
        seed=seed,
        dtype=config.dtype,
    )
    with StoreWriter(folder, manifest, catalog, retry_failed=config.retry_failed) as writer:
        if writer.todo:
            engine = open_engine(spec, network, device=device, engine=config.engine)
            writer.sign({"engine": engine.name})
            request = CutRequest(
                sampling=config.sampling,
                span=spec.span,
                frames=spec.frames,
                size=spec.size,
                seed=seed,
            )
            _fill(writer, catalog, engine, request, config)
    return FeatureStore(folder)


def _fill(
    writer: StoreWriter,
    catalog: Catalog,
    engine: Engine,
    request: CutRequest,
    config: ExtractConfig,
) -> None:
    by_id = {video.id: video for video in catalog}
    videos = [by_id[entry.id] for entry in writer.todo]
    workers = min(os.cpu_count() or 1, 8) if config.workers is None else config.workers
    title = f"extracting ({engine.name} on {engine.device})"
    with (
        bar(title, len(catalog), "videos", done=len(catalog) - len(videos)) as advance,
        cut_videos(videos, request, workers=workers, timeout=config.timeout) as outcomes,
    ):
        for outcome in outcomes:
            _look(writer, engine, outcome)
            advance(note=f"{writer.failures} failed" if writer.failures else "")


def _look(writer: StoreWriter, engine: Engine, outcome: Outcome) -> None:
    """Show one video's clips to the backbone and hand its features to the writer."""
    entry = writer.todo[outcome.place]
    if outcome.cut is None:
        writer.put(
            outcome.place, replace(entry, status="failed", reason=outcome.reason), None, None
        )
        return
    began = time.perf_counter()
    features = engine.features(outcome.cut.pixels).numpy()  # (V, D)
    facts = outcome.cut.facts
    done = replace(
        entry,
        status="done",
        reason=None,
        random_count=facts.random_clips,
        regular_count=facts.regular_clips,
        duration=facts.duration,
        width=facts.width,
        height=facts.height,
        frames_expected=facts.frames_expected,
        frames_found=facts.frames_found,
        seconds=time.perf_counter() - began,
    )
    writer.put(outcome.place, done, outcome.cut, features)


class StoreWriter:
    """Commits videos in the order of the catalog, in whatever order they get ready."""

    def __init__(
        self, folder: Path, manifest: Manifest, catalog: Catalog, *, retry_failed: bool = False
    ) -> None:
        self.folder = folder
        self.manifest = _agree_on_manifest(folder, manifest)
        write_catalog(_absolute(catalog), folder / "catalog.csv")
        self.ledger = Ledger(folder / "ledger.sqlite", create=True)
        self.ledger.append(video.id for video in catalog)
        wanted = {video.id for video in catalog}
        again = ("pending", "failed") if retry_failed else ("pending",)
        self.todo: Sequence[Entry] = [e for e in self.ledger.entries(*again) if e.id in wanted]
        self.failures = 0
        self._waiting: dict[
            int, tuple[Entry, CutVideo | None, Float[np.ndarray, "V D"] | None]
        ] = {}
        self._next = 0
        self._batch: list[Entry] = []
        self._committed = time.monotonic()
        done = self.ledger.entries("done")
        self._rows: dict[Kind, int] = {
            "random": max((e.random_first + e.random_count for e in done), default=0),
            "regular": max((e.regular_first + e.regular_count for e in done), default=0),
        }
        self._open = ExitStack()
        self._arrays = {kind: self._open_arrays(kind) for kind in KINDS}

    def _open_arrays(self, kind: Kind) -> dict[str, GrowingArray]:
        (self.folder / kind).mkdir(exist_ok=True)
        return {
            name: self._open.enter_context(
                GrowingArray(self.folder / kind / f"{name}.npy", shape, dtype)
            )
            for name, (shape, dtype) in self.manifest.columns().items()
        }

    def sign(self, made_by: dict[str, str]) -> None:
        """Note in the manifest what makes the features, the first time."""
        if not self.manifest.made_by:
            versions = {name: version(name) for name in ("clipset", "torch", "av", "numpy")}
            made_by = made_by | versions | {"python": platform.python_version()}
            self.manifest = replace(self.manifest, made_by=made_by)
            write_json(self.folder / "manifest.json", self.manifest)

    def put(
        self,
        place: int,
        entry: Entry,
        cut: CutVideo | None,
        features: Float[np.ndarray, "V D"] | None,
    ) -> None:
        """Take a video in; it is committed once all before it are."""
        if cut is not None:  # the pixels are not needed any more
            cut = replace(cut, pixels=cut.pixels[:0])
        self._waiting[place] = (entry, cut, features)
        while self._next in self._waiting:
            self._append(*self._waiting.pop(self._next))
            self._next += 1
        if time.monotonic() - self._committed > COMMIT_SECONDS:
            self.commit()

    def _append(
        self, entry: Entry, cut: CutVideo | None, features: Float[np.ndarray, "V D"] | None
    ) -> None:
        if cut is None or features is None:
            self.failures += 1
            say(f"skipped {entry.id}: {entry.reason}")
            self._batch.append(entry)
            return
        rows = []
        for kind, low, high in (
            ("random", 0, entry.random_count),
            ("regular", entry.random_count, len(features)),
        ):
            for name, array in zip(
                self.manifest.columns(), (features, cut.boxes, cut.times), strict=True
            ):
                target = self._arrays[kind][name]
                rows.append(array[low:high].astype(target.dtype))
                target.write(self._rows[kind], rows[-1])
        self._batch.append(
            replace(
                entry,
                random_first=self._rows["random"],
                regular_first=self._rows["regular"],
                checksum=checksum_of(rows),
            )
        )
        self._rows["random"] += entry.random_count
        self._rows["regular"] += entry.regular_count

    def commit(self) -> None:
        """Put the rows on disk, then say so in the ledger."""
        if self._batch:
            for arrays in self._arrays.values():
                for array in arrays.values():
                    array.sync()
            self.ledger.write(self._batch)
            self._batch = []
        self._committed = time.monotonic()

    def __enter__(self) -> StoreWriter:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        try:
            self.commit()
            for each in KINDS:
                for array in self._arrays[each].values():
                    array.finish(self._rows[each])
        finally:
            self._open.close()
            self.ledger.close()


def _agree_on_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """The folder's own manifest if it was made the same way, else a new one in an empty folder."""
    if (folder / "manifest.json").exists():
        found = read_manifest(folder)
        if replace(found, made_by={}) != manifest:
            raise StoreError(
                f"{folder} was made {_difference(found, manifest)}; use another folder"
            )
        return found
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if any(folder.iterdir()):
            raise StoreError(
                f"{folder} holds something that is no feature store; use another folder"
            )
        write_json(folder / "manifest.json", manifest)
    except OSError as error:
        raise StoreError(f"cannot write to {folder}: {error.strerror}") from None
    return manifest


def _difference(found: Manifest, wanted: Manifest) -> str:
    for name in ("backbone", "sampling", "seed", "dtype"):
        old, new = getattr(found, name), getattr(wanted, name)
        if old != new:
            inner = getattr(old, "__dataclass_fields__", {})
            for field_name in inner:
                was, now = getattr(old, field_name), getattr(new, field_name)
                if was != now:
                    return f"with {name} {field_name} {was}, not {now}"
            return f"with {name} {old}, not {new}"
    return "in another way"


def _absolute(catalog: Catalog) -> Catalog:
    return catalog.only(replace(video, path=video.path.absolute()) for video in catalog)
