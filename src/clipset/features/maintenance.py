"""Repairs a store, and merges several into one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from clipset.backbones.runtime import open_engine
from clipset.data.catalog import Catalog, Video
from clipset.errors import BackboneError, StoreError, VideoError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import decode_videos
from clipset.features.encode import ClipRows, EncodedVideo, encode_videos
from clipset.features.extract import choose_engine, decode_request, load_network, name_to_load
from clipset.features.ledger import KINDS, LedgerEntry
from clipset.features.sprites import read_sprite
from clipset.features.store import FeatureStore, Manifest, manifest_difference, row_checksum
from clipset.features.verify import find_damaged_rows, find_overlaps, open_arrays, rows_of
from clipset.features.writer import StoreWriter
from clipset.progress import bar


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
    done_entries = [entry for entry in store.all_entries if entry.status == "done"]
    for video_id, problem in find_overlaps(done_entries):
        raise StoreError(
            f"{folder} cannot be repaired ({video_id}: {problem}); extract to a new folder"
        )
    damaged_ids = dict(find_damaged_rows(store, done_entries))
    videos = {video.id: video for video in store.catalog}
    damaged_entries = [entry for entry in done_entries if entry.id in damaged_ids]
    listed_entries = [entry for entry in damaged_entries if entry.id in videos]
    if listed_entries:
        network = load_network(store.manifest, name_to_load(store.manifest, backbone))
    manifest, result = replace(store.manifest, made_by={}), RepairResult()
    with StoreWriter(store.folder, manifest, store.catalog, sources=None) as writer:
        for entry in damaged_entries:
            if entry.id not in videos:
                _replace_rows(writer, entry, VideoError("the catalog does not list it"), result)
        if listed_entries:
            engine_name = choose_engine(writer, config)
            engine = open_engine(manifest.backbone, network, device=device, engine=engine_name)
            with (
                bar("repairing", len(listed_entries), "videos") as advance,
                decode_videos(
                    [videos[entry.id] for entry in listed_entries],
                    decode_request(manifest, sprite=True),
                    config,
                ) as results,
            ):
                for video_index, video in encode_videos(engine, results):
                    _replace_rows(writer, listed_entries[video_index], video, result)
                    advance()
    return result


def _replace_rows(
    writer: StoreWriter,
    entry: LedgerEntry,
    video: EncodedVideo | VideoError | BackboneError,
    result: RepairResult,
) -> None:
    """Write the rows of a repaired video; one that failed never uses its damaged rows again."""
    if isinstance(video, BackboneError):
        raise BackboneError(f"{entry.id}: {video}") from None
    entry = replace(entry, num_repairs=entry.num_repairs + 1)
    if isinstance(video, EncodedVideo) and video.update(entry).rows() != entry.rows():
        video = VideoError("the file has changed: it has another number of clips")
    if isinstance(video, VideoError):
        result.failed[entry.id] = str(video)
        reason = f"its rows were damaged and could not be extracted again: {video}"
        writer.record(entry.failed(reason, video.transient, entry.file))
        return
    new_entry = writer.write_rows(video.update(entry), video.rows)
    writer.write_sprite(entry, video.sprite)
    is_restored = new_entry.checksum == entry.checksum
    (result.restored if is_restored else result.changed).append(entry.id)
    writer.record(entry if is_restored else new_entry)


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
            difference = manifest_difference(store.manifest, manifest)
            raise StoreError(f"{store.folder} was made {difference} as in {stores[0].folder}")
    selection = _select_entries(stores)
    catalog = _merge_catalogs(stores)
    with StoreWriter(out, manifest, catalog, sources=None, retry_failed=True) as writer:
        for entry in writer.ledger.entries("done"):  # a resumed merge must be the one that started
            store, source = selection.get(entry.id, (stores[0], entry))
            if source.status == "done" and source.checksum != entry.checksum:
                raise StoreError(f"{entry.id} has other rows in {out} than in {store.folder}")
        if "engine" not in writer.manifest.made_by:
            writer.write_provenance(_merge_provenance([store.manifest for store in stores]))
        arrays = {store.folder: open_arrays(store) for store in stores}
        with bar("merging", len(writer.pending), "videos") as advance:
            for entry in writer.pending:
                store, source = selection[entry.id]
                merged_entry = replace(source, ordinal=entry.ordinal)
                if source.status == "done":
                    rows = rows_of(source, arrays[store.folder])
                    if row_checksum(rows.values()) != source.checksum:
                        raise StoreError(
                            f"{source.id} is damaged in {store.folder}; "
                            f"run `clipset repair {store.folder}` first"
                        )
                    clip_rows = {
                        name: np.concatenate([rows[k, name] for k in KINDS]) for _, name in rows
                    }
                    writer.write_sprite(entry, read_sprite(store.folder, source.ordinal))
                    writer.add(merged_entry, ClipRows(**clip_rows))
                elif source.status == "failed":
                    writer.record(merged_entry)
                advance()
    return FeatureStore(out)


def _select_entries(stores: Sequence[FeatureStore]) -> dict[str, tuple[FeatureStore, LedgerEntry]]:
    """For each video the first store that has its rows, else the first in which it failed."""
    selection: dict[str, tuple[FeatureStore, LedgerEntry]] = {}
    status_rank = {"done": 0, "failed": 1, "pending": 2}
    for store in stores:
        for entry in (*store.entries, *store.failed, *store.pending):
            first, selected = selection.setdefault(entry.id, (store, entry))
            if entry.status == selected.status == "done" and entry.checksum != selected.checksum:
                raise StoreError(
                    f"{entry.id} has other rows in {store.folder} than in {first.folder}; "
                    f"remove it from one of them"
                )
            if status_rank[entry.status] < status_rank[selected.status]:
                selection[entry.id] = (store, entry)
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


def _merge_provenance(manifests: Sequence[Manifest]) -> dict[str, str]:
    """What made the rows; where stores differ, all values. Of the paths of a backbone, the first.

    Several engines are recorded under another name, as none of them can extend the store.
    """
    merged_facts = {}
    for name in dict.fromkeys(name for manifest in manifests for name in manifest.made_by):
        values = list(dict.fromkeys(m.made_by[name] for m in manifests if name in m.made_by))
        if name == "backbone":
            values = values[:1]
        fact_name = "engines" if name == "engine" and len(values) > 1 else name
        merged_facts[fact_name] = " and ".join(values)
    return merged_facts
