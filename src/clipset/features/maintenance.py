"""What can be done to stores that are there: repair one, merge several."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from torch import nn

from clipset.backbones.runtime import open_engine
from clipset.data.catalog import Catalog, Video
from clipset.errors import StoreError
from clipset.features.arrays import open_found_rows
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import cut_videos
from clipset.features.encode import ClipRows, Seen, look
from clipset.features.extract import (
    choose_engine,
    count_workers,
    cut_request,
)
from clipset.features.ledger import KINDS, Entry
from clipset.features.provenance import load_network, name_to_load
from clipset.features.store import FeatureStore, Manifest, checksum_of
from clipset.features.verify import find_damage, find_overlaps
from clipset.features.writer import StoreWriter, difference
from clipset.progress import bar


@dataclass(frozen=True, slots=True)
class Repair:
    """What became of the videos that were wrong, by their ids.

    `redone` have their rows back, bit for bit. `changed` have right rows that are not those of
    before (another version or machine made them). `failed` could not be made again; why.
    """

    redone: list[str] = field(default_factory=list)
    changed: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)


def repair_store(
    folder: Path,
    *,
    workers: int | None = None,
    timeout: float | None = None,
    device: str = "auto",
    backbone: str | None = None,
) -> Repair:
    """Make the rows of just those videos again that `verify_store` finds wrong, in their place.

    `backbone` names the store's backbone where that is a file or a model of the hub.
    """
    config = ExtractConfig(workers=workers, timeout=timeout)
    store = FeatureStore(folder)
    done = [entry for entry in store.everything if entry.status == "done"]
    for id, problem in find_overlaps(done):
        raise StoreError(
            f"{folder} cannot be repaired ({id}: {problem}); extract into a new folder"
        )
    damaged = dict(find_damage(store, done))
    wrong = [entry for entry in done if entry.id in damaged]
    paths = {video.id: video for video in store.catalog}
    known = [entry for entry in wrong if entry.id in paths]
    network = None
    if known:
        network = load_network(store.manifest, name_to_load(store.manifest, backbone))
    repair = Repair()
    manifest = replace(store.manifest, made_by={})
    with StoreWriter(folder, manifest, store.catalog, sources=None) as writer:
        for entry in wrong:
            if entry.id not in paths:
                _give_up(writer, entry, "the catalog does not say where it is", repair)
        if network is not None:
            videos = [paths[entry.id] for entry in known]
            _redo(writer, known, videos, network, config, device, repair)
    return repair


def _redo(
    writer: StoreWriter,
    entries: Sequence[Entry],
    videos: Sequence[Video],
    network: nn.Module,
    config: ExtractConfig,
    device: str,
    repair: Repair,
) -> None:
    manifest = writer.manifest
    chosen = choose_engine(writer, config)
    engine = open_engine(manifest.backbone, network, device=device, engine=chosen)
    with (
        bar("repairing", len(videos), "videos") as advance,
        cut_videos(
            videos,
            cut_request(manifest),
            workers=count_workers(config),
            timeout=config.seconds_per_video,
        ) as outcomes,
    ):
        for seen in look(engine, outcomes, [video.id for video in videos]):
            _mend(writer, entries[seen.place], seen, repair)
            advance()


def _mend(writer: StoreWriter, entry: Entry, seen: Seen, repair: Repair) -> None:
    fresh = seen.note(entry)
    if seen.rows is None:
        _give_up(writer, entry, seen.reason or "cannot be read", repair, seen.transient)
    elif fresh.rows() != entry.rows():
        _give_up(writer, entry, "the file has changed: it has another number of clips", repair)
    elif (filled := writer.fill(fresh, seen.rows)).checksum == entry.checksum:
        repair.redone.append(entry.id)
        writer.note(entry)
    else:
        repair.changed.append(entry.id)
        writer.note(filled)


def _give_up(
    writer: StoreWriter, entry: Entry, reason: str, repair: Repair, transient: bool = False
) -> None:
    """Damaged rows must not be used: a video that cannot be made again has failed."""
    repair.failed[entry.id] = reason
    reason = f"its rows were damaged and could not be made again: {reason}"
    writer.note(
        Entry(
            ordinal=entry.ordinal,
            id=entry.id,
            status="failed",
            reason=reason,
            transient=transient,
            file=entry.file,
            video_end=entry.video_end,
        )
    )


def merge_stores(sources: Sequence[Path], folder: Path) -> FeatureStore:
    """One store of several that were made in the same way, their videos in the order given.

    A video that is in two of them must have the same rows in both.
    """
    if not sources:
        raise StoreError("there is no store to merge; name at least one")
    stores = [FeatureStore(source) for source in sources]
    manifest = replace(stores[0].manifest, made_by={})
    for store in stores:
        if store.folder.resolve() == folder.resolve():
            raise StoreError(f"{folder} cannot be merged into itself; use another folder")
        if replace(store.manifest, made_by={}) != manifest:
            how = difference(store.manifest, manifest)
            raise StoreError(f"{store.folder} was made {how} as in {stores[0].folder}")
    chosen = _choose(stores)
    with StoreWriter(folder, manifest, _join(stores), sources=None, retry_failed=True) as writer:
        _refuse_conflicts(writer, chosen)
        if not writer.manifest.made_by:
            writer.credit(_credits([store.manifest for store in stores]))
        with bar("merging", len(writer.todo), "videos") as advance:
            for entry in writer.todo:
                store, found = chosen[entry.id]
                if found.status != "pending":
                    rows = _read_rows(store, found) if found.status == "done" else None
                    writer.add(replace(found, ordinal=entry.ordinal), rows)
                advance()
    return FeatureStore(folder)


def _choose(stores: Iterable[FeatureStore]) -> dict[str, tuple[FeatureStore, Entry]]:
    """For each video the first store that has its rows, else the first that knows why not."""
    chosen: dict[str, tuple[FeatureStore, Entry]] = {}
    rank = {"done": 0, "failed": 1, "pending": 2}
    for store in stores:
        for entry in (*store.entries, *store.failed, *store.pending):
            first, found = chosen.get(entry.id, (store, entry))
            if entry.status == found.status == "done" and entry.checksum != found.checksum:
                raise StoreError(
                    f"{entry.id} has other rows in {store.folder} than in {first.folder}; "
                    f"leave it out of one of them"
                )
            better = rank[entry.status] < rank[found.status]
            chosen[entry.id] = (store, entry) if better else (first, found)
    return chosen


def _join(stores: Sequence[FeatureStore]) -> Catalog:
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


def _refuse_conflicts(writer: StoreWriter, chosen: dict[str, tuple[FeatureStore, Entry]]) -> None:
    """A merge that goes on must be the one that was begun."""
    for entry in writer.ledger.entries("done"):
        store, found = chosen.get(entry.id, (None, entry))
        if store is not None and found.status == "done" and found.checksum != entry.checksum:
            raise StoreError(f"{entry.id} has other rows in {writer.folder} than in {store.folder}")


def _credits(manifests: Sequence[Manifest]) -> dict[str, str]:
    """Who made the rows; where stores differ, all of them. Engines are kept apart.

    Of the places where a backbone of your own was, the first is enough: it is the same one.
    """
    names = dict.fromkeys(name for manifest in manifests for name in manifest.made_by)
    credits = {}
    for name in names:
        values = dict.fromkeys(m.made_by[name] for m in manifests if name in m.made_by)
        if name == "backbone":
            values = dict.fromkeys(list(values)[:1])
        if name == "engine" and len(values) > 1:  # none of them can go on with it
            name = "engines"
        credits[name] = " and ".join(values)
    return credits


def _read_rows(store: FeatureStore, entry: Entry) -> ClipRows:
    columns = store.manifest.columns()
    parts = {
        (kind, name): open_found_rows(store.folder / kind / f"{name}.npy", shape, dtype)[
            first : first + count
        ]
        for kind, first, count in entry.rows()
        for name, (shape, dtype) in columns.items()
    }
    if checksum_of(list(parts.values())) != entry.checksum:
        raise StoreError(
            f"{entry.id} is damaged in {store.folder}; run `clipset repair {store.folder}` first"
        )
    rows = {name: np.concatenate([parts[kind, name] for kind in KINDS]) for name in columns}
    return ClipRows(**rows)
