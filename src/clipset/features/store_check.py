"""Which videos of a catalog a store still needs. Imports no network library."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

from clipset.data.catalog import Catalog
from clipset.features.file_changes import compare_files
from clipset.features.ledger import Entry, Ledger
from clipset.features.store import Manifest
from clipset.features.writer import agree


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCheck:
    """The ids of a catalog's videos that a store does not have as they are now.

    `pending` were never extracted, `changed` were read from another file, `transient` failed with
    an error that may be gone.
    """

    pending: frozenset[str]
    changed: frozenset[str]
    transient: frozenset[str]

    @property
    def is_complete(self) -> bool:
        """Whether there is nothing to extract."""
        return not (self.pending or self.changed or self.transient)


def check_store(folder: Path, manifest: Manifest, catalog: Catalog) -> StoreCheck:
    """What `extract` has to do to a store; raises what it would raise. Writes nothing."""
    agree(folder, manifest)
    entries: Sequence[Entry] = ()
    if (folder / "ledger.sqlite").is_file():
        with closing(Ledger(folder / "ledger.sqlite")) as ledger:
            entries = ledger.entries()
    changes = compare_files(entries, catalog)
    changes.refuse_unverifiable(folder)
    finished = {entry.id for entry in entries if entry.status != "pending"}
    ids = frozenset(video.id for video in catalog)
    return StoreCheck(
        pending=ids - finished,
        changed=frozenset(entry.id for entry in changes.pending),
        transient=ids & {e.id for e in entries if e.status == "failed" and e.transient},
    )
