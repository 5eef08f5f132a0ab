"""read_videos: whatever names videos (a folder, a catalog file) as a Catalog."""

from __future__ import annotations

from pathlib import Path

from clipset.errors import CatalogError
from clipset.videos.catalog import Catalog, read_catalog
from clipset.videos.folders import read_folder
from clipset.videos.tables import SUFFIXES


def read_videos(source: Path, *, name: str | None = None) -> Catalog:
    """The videos in a folder or in a catalog file."""
    if source.is_dir():
        return read_folder(source, name=name)
    if not source.exists():
        raise CatalogError(f"there is no folder or catalog at {source}")
    if source.suffix.lower() not in SUFFIXES:
        raise CatalogError(
            f"{source} is neither a folder nor a catalog; a catalog ends in {', '.join(SUFFIXES)}"
        )
    return read_catalog(source, name=name)
