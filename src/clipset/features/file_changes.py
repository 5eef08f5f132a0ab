"""Whether the files that a store's rows were read from are still the same ones."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from clipset.data.catalog import Video
from clipset.data.file_state import read_file_state, resolve_path
from clipset.errors import StoreError
from clipset.features.ledger import Entry
from clipset.progress import bar

MANY = 10_000


@dataclass(frozen=True, slots=True)
class FileChanges:
    """What became of the files of settled videos.

    `moved` are entries whose file has the same content elsewhere, or at another time, with its new
    state. `pending` are those whose file or `end` is another one: nothing is known of them any
    more. `unverifiable` cannot be read where they should be now, which is not where they were.
    """

    moved: list[Entry] = field(default_factory=list)
    pending: list[Entry] = field(default_factory=list)
    unverifiable: list[str] = field(default_factory=list)

    def refuse_unverifiable(self, folder: Path) -> None:
        """Stored rows must not stand for files that nobody can compare them with."""
        if self.unverifiable:
            raise StoreError(
                f"{folder} has features of {len(self.unverifiable)} videos that were read from "
                f"other files than the catalog names, and those cannot be read to compare them "
                f"({self.unverifiable[0]}); restore the files, or use another folder"
            )


def compare_files(entries: Sequence[Entry], sources: Iterable[Video]) -> FileChanges:
    """Compare the files that were read with those that would be read now.

    A file that is gone keeps its rows, as long as it is looked for in the same place.
    """
    videos = {video.id: video for video in sources}
    settled = [e for e in entries if e.id in videos and e.status != "pending"]
    changes = FileChanges()
    total = len(settled) if len(settled) >= MANY else 0  # a few are compared at once
    with bar("comparing files", total, "files") as advance:
        for entry in settled:
            _compare(entry, videos[entry.id], changes)
            advance()
    return changes


def find_changed_files(entries: Sequence[Entry], sources: Iterable[Video]) -> list[tuple[str, str]]:
    """The ids of stored videos whose files are not as they were read, and what is wrong."""
    paths = {video.id: video.path for video in sources}
    problems = []
    with bar("comparing files", len(entries), "files") as advance:
        for entry in entries:
            now = read_file_state(paths[entry.id]) if entry.id in paths else None
            if now is None:
                problems.append((entry.id, "its file cannot be read"))
            elif entry.file is not None and not now.has_same_content(entry.file):
                problems.append((entry.id, "its file has changed since it was read"))
            advance()
    return problems


def _compare(entry: Entry, video: Video, changes: FileChanges) -> None:
    before = entry.file
    if entry.video_end != video.end:
        changes.pending.append(Entry(ordinal=entry.ordinal, id=entry.id))
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
        changes.pending.append(Entry(ordinal=entry.ordinal, id=entry.id))


def _is_current(entry: Entry, video: Video) -> bool:
    try:
        return entry.file is not None and entry.file.is_current(video.path)
    except (OSError, ValueError):
        return False
