"""Repairs a store, and merges several into one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from clipset.backbones.runtime import open_engine
from clipset.data.catalog import Catalog, Video
from clipset.errors import StoreError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import decode_videos
from clipset.features.encode import ClipRows, EncodedVideo, encode_videos
from clipset.features.extract import choose_engine, decode_request
from clipset.features.ledger import KINDS, LedgerEntry
from clipset.features.provenance import load_network, name_to_load
from clipset.features.store import FeatureStore, Manifest, row_checksum
from clipset.features.store_check import describe_difference
from clipset.features.verify import find_damage, find_overlaps
from clipset.features.writer import StoreWriter
from clipset.progress import bar
from clipset.row_files import open_all_rows

Selection = dict[str, tuple[FeatureStore, LedgerEntry]]
"""The store to take each video from, by the video's id."""


@dataclass(frozen=True, slots=True)
class RepairResult:
    """The ids of repaired videos.

    `restored` have the same rows as before. `changed` have valid rows that differ (another version
    or machine made them). `failed` could not be extracted again, for the reasons given.
    """

    restored: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def repair_store(
    folder: str | Path,
    *,
    workers: int | None = None,
    timeout: float | None = None,
    device: str = "auto",
    backbone: str | None = None,
) -> RepairResult:
    """Extract the videos again that `verify_store` reports, in place.

    `backbone` names the store's backbone where that is a file or a model of the hub.
    """
    config = ExtractConfig(workers=workers, timeout=timeout)
    store = FeatureStore(folder)
    done = [entry for entry in store.all_entries if entry.status == "done"]
    for id, problem in find_overlaps(done):
        raise StoreError(f"{folder} cannot be repaired ({id}: {problem}); extract to a new folder")
    damaged_ids = dict(find_damage(store, done))
    damaged = [entry for entry in done if entry.id in damaged_ids]
    videos = {video.id: video for video in store.catalog}
    listed = [entry for entry in damaged if entry.id in videos]
    if listed:
        network = load_network(store.manifest, name_to_load(store.manifest, backbone))
    manifest = replace(store.manifest, made_by={})
    with StoreWriter(store.folder, manifest, store.catalog, sources=None) as writer:
        repair = _Repair(writer)
        for entry in damaged:
            if entry.id not in videos:
                repair.fail(entry, "the catalog does not list it")
        if listed:
            engine_name = choose_engine(writer, config)
            spec = writer.manifest.backbone
            engine = open_engine(spec, network, device=device, engine=engine_name)
            with (
                bar("repairing", len(listed), "videos") as advance,
                decode_videos(
                    [videos[entry.id] for entry in listed],
                    decode_request(writer.manifest),
                    workers=config.num_workers,
                    timeout=config.timeout_seconds,
                ) as results,
            ):
                for video in encode_videos(engine, results, [entry.id for entry in listed]):
                    repair.replace_rows(listed[video.index], video)
                    advance()
    return repair.result


class _Repair:
    """Writes repaired rows, and records what happened to each video."""

    def __init__(self, writer: StoreWriter) -> None:
        self.writer, self.result = writer, RepairResult()

    def replace_rows(self, entry: LedgerEntry, video: EncodedVideo) -> None:
        updated = video.update(entry)
        if video.rows is None:
            self.fail(entry, video.reason or "cannot be read", video.transient)
        elif updated.rows() != entry.rows():
            self.fail(entry, "the file has changed: it has another number of clips")
        elif (written := self.writer.write_rows(updated, video.rows)).checksum == entry.checksum:
            self.result.restored.append(entry.id)
            self.writer.record(entry)
        else:
            self.result.changed.append(entry.id)
            self.writer.record(written)

    def fail(self, entry: LedgerEntry, reason: str, transient: bool = False) -> None:
        """Mark a video as failed, so that its damaged rows are never used."""
        self.result.failed[entry.id] = reason
        failed = replace(
            entry.reset(),
            status="failed",
            reason=f"its rows were damaged and could not be extracted again: {reason}",
            transient=transient,
            file=entry.file,
            video_end=entry.video_end,
        )
        self.writer.record(failed)


def merge_stores(sources: Sequence[str | Path], out: str | Path) -> FeatureStore:
    """Merge stores that were made in the same way; their videos keep the order given.

    A video that is in two of them must have the same rows in both.
    """
    if not sources:
        raise StoreError("no stores to merge; name at least one")
    out = Path(out)
    stores = [FeatureStore(source) for source in sources]
    manifest = replace(stores[0].manifest, made_by={})
    for store in stores:
        if store.folder.resolve() == out.resolve():
            raise StoreError(f"{out} cannot be merged into itself; use another folder")
        if replace(store.manifest, made_by={}) != manifest:
            difference = describe_difference(store.manifest, manifest)
            raise StoreError(f"{store.folder} was made {difference} as in {stores[0].folder}")
    selection = _select(stores)
    catalog = _merge_catalogs(stores)
    with StoreWriter(out, manifest, catalog, sources=None, retry_failed=True) as writer:
        _check_resumable(writer, selection)
        if "engine" not in writer.manifest.made_by:
            writer.write_provenance(_merge_provenance([store.manifest for store in stores]))
        with bar("merging", len(writer.pending), "videos") as advance:
            for entry in writer.pending:
                store, source = selection[entry.id]
                if source.status != "pending":
                    rows = _read_rows(store, source) if source.status == "done" else None
                    writer.add(replace(source, ordinal=entry.ordinal), rows)
                advance()
    return FeatureStore(out)


def _select(stores: Iterable[FeatureStore]) -> Selection:
    """For each video the first store that has its rows, else the first in which it failed."""
    selection: Selection = {}
    rank = {"done": 0, "failed": 1, "pending": 2}
    for store in stores:
        for entry in (*store.entries, *store.failed, *store.pending):
            first, selected = selection.get(entry.id, (store, entry))
            if entry.status == selected.status == "done" and entry.checksum != selected.checksum:
                raise StoreError(
                    f"{entry.id} has other rows in {store.folder} than in {first.folder}; "
                    f"remove it from one of them"
                )
            better = rank[entry.status] < rank[selected.status]
            selection[entry.id] = (store, entry) if better else (first, selected)
    return selection


def _merge_catalogs(stores: Sequence[FeatureStore]) -> Catalog:
    videos: dict[str, Video] = {}
    for store in stores:
        for video in store.catalog:
            first = videos.setdefault(video.id, video)
            if first.label != video.label:
                raise StoreError(
                    f"{video.id} is labelled {first.label!r} and, in {store.folder}, "
                    f"{video.label!r}; make the catalogs agree"
                )
    return stores[0].catalog.only(videos.values())


def _check_resumable(writer: StoreWriter, selection: Selection) -> None:
    """A resumed merge must be the one that was started."""
    for entry in writer.ledger.entries("done"):
        store, source = selection.get(entry.id, (None, entry))
        if store is not None and source.status == "done" and source.checksum != entry.checksum:
            raise StoreError(f"{entry.id} has other rows in {writer.folder} than in {store.folder}")


def _merge_provenance(manifests: Sequence[Manifest]) -> dict[str, str]:
    """What made the rows; where stores differ, all values. Of the paths of a backbone, the first.

    Several engines are recorded under another name, as none of them can extend the store.
    """
    merged = {}
    for name in dict.fromkeys(name for manifest in manifests for name in manifest.made_by):
        values = list(dict.fromkeys(m.made_by[name] for m in manifests if name in m.made_by))
        if name == "backbone":
            values = values[:1]
        key = "engines" if name == "engine" and len(values) > 1 else name
        merged[key] = " and ".join(values)
    return merged


def _read_rows(store: FeatureStore, entry: LedgerEntry) -> ClipRows:
    columns = store.manifest.columns()
    parts = {
        (kind, name): open_all_rows(store.folder / kind / f"{name}.npy", shape, dtype)[
            first : first + count
        ]
        for kind, first, count in entry.rows()
        for name, (shape, dtype) in columns.items()
    }
    if row_checksum(list(parts.values())) != entry.checksum:
        raise StoreError(
            f"{entry.id} is damaged in {store.folder}; run `clipset repair {store.folder}` first"
        )
    return ClipRows(**{n: np.concatenate([parts[kind, n] for kind in KINDS]) for n in columns})
