"""What an extraction has to do to a store: which videos are pending, and whose files changed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import closing
from dataclasses import dataclass, field, replace
from pathlib import Path

from clipset.data.catalog import Catalog, Video
from clipset.data.file_state import read_file_state, resolve_path
from clipset.errors import StoreError
from clipset.features.ledger import Ledger, LedgerEntry
from clipset.features.store import Manifest, read_manifest
from clipset.progress import bar

SHOW_PROGRESS_FROM = 10_000  # compared files


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """The ids of the videos that a store has yet to process.

    `pending` were never processed, `changed` were read from another file, and `transient` failed
    for a reason that may be gone.
    """

    pending: frozenset[str]
    changed: frozenset[str]
    transient: frozenset[str]

    @property
    def is_complete(self) -> bool:
        """Whether nothing is left to extract."""
        return not (self.pending or self.changed or self.transient)


def check_store(folder: Path, manifest: Manifest, catalog: Catalog) -> StoreCheck:
    """What `extract` would do to a store, with the errors that it would raise. Writes nothing."""
    check_manifest(folder, manifest)
    entries: Sequence[LedgerEntry] = ()
    if (folder / "ledger.sqlite").is_file():
        with closing(Ledger(folder / "ledger.sqlite")) as ledger:
            entries = ledger.entries()
    changes = compare_files(entries, catalog)
    changes.check_verifiable(folder)
    processed = {entry.id for entry in entries if entry.status != "pending"}
    ids = frozenset(video.id for video in catalog)
    return StoreCheck(
        pending=ids - processed,
        changed=frozenset(entry.id for entry in changes.pending),
        transient=ids & {e.id for e in entries if e.status == "failed" and e.transient},
    )


def check_manifest(folder: Path, manifest: Manifest) -> Manifest:
    """The manifest of a store that was made in the requested way; an error if it was not."""
    stored = read_manifest(folder)
    if replace(stored, made_by={}) != replace(manifest, made_by={}):
        difference = describe_difference(stored, manifest)
        raise StoreError(f"{folder} was made {difference}; use another folder")
    return stored


def describe_difference(stored: Manifest, requested: Manifest) -> str:
    """The first difference of two manifests, as the end of `was made …`."""
    if stored.backbone.name != requested.backbone.name:
        return f"with backbone {stored.backbone.name}, not {requested.backbone.name}"
    for name in ("backbone", "sampling", "seed", "dtype"):
        old, new = getattr(stored, name), getattr(requested, name)
        for inner in getattr(old, "__dataclass_fields__", {}):
            if getattr(old, inner) != getattr(new, inner):
                return f"with {name} {inner} {getattr(old, inner)}, not {getattr(new, inner)}"
        if old != new:
            return f"with {name} {old}, not {new}"
    return "in another way"


@dataclass(frozen=True, slots=True)
class FileChanges:
    """Changes to the files of processed videos.

    `moved`: entries of files with the same content and a new state. `pending`: entries to process
    again, as the file or the `end` has changed. `unverifiable`: files that are listed elsewhere
    than before and cannot be read there.
    """

    moved: list[LedgerEntry] = field(default_factory=list)
    pending: list[LedgerEntry] = field(default_factory=list)
    unverifiable: list[str] = field(default_factory=list)

    def check_verifiable(self, folder: Path) -> None:
        """Raise StoreError if rows cannot be compared with the files that the catalog lists."""
        if self.unverifiable:
            raise StoreError(
                f"{folder} has features of {len(self.unverifiable)} videos that were read from "
                f"other files than the catalog lists, and those cannot be read to compare them "
                f"({self.unverifiable[0]}); restore the files, or use another folder"
            )


def compare_files(entries: Sequence[LedgerEntry], sources: Iterable[Video]) -> FileChanges:
    """Compare the files that were read with those that would be read now.

    Rows of a deleted file are kept as long as the catalog lists the same path.
    """
    videos = {video.id: video for video in sources}
    processed = [e for e in entries if e.id in videos and e.status != "pending"]
    changes = FileChanges()
    total = len(processed) if len(processed) >= SHOW_PROGRESS_FROM else 0
    with bar("comparing files", total, "files") as advance:
        for entry in processed:
            _compare_file(entry, videos[entry.id], changes)
            advance()
    return changes


def _compare_file(entry: LedgerEntry, video: Video, changes: FileChanges) -> None:
    before = entry.file
    if entry.video_end != video.end:
        changes.pending.append(entry.reset())
        return
    if before is None or _is_current(entry, video):
        return
    now = read_file_state(video.path)
    if now is None:
        if before.path != resolve_path(video.path) and entry.status == "done":
            changes.unverifiable.append(f"{entry.id}: was {before.path}, is {video.path}")
    elif now.has_same_content(before):
        changes.moved.append(replace(entry, file=now))
    else:
        changes.pending.append(entry.reset())


def _is_current(entry: LedgerEntry, video: Video) -> bool:
    try:
        return entry.file is not None and entry.file.is_current(video.path)
    except (OSError, ValueError):
        return False
