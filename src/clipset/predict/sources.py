"""Whatever names new videos (files, folders, catalogs) as one catalog."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from clipset.errors import CatalogError
from clipset.videos.catalog import Catalog, Video, read_catalog
from clipset.videos.folders import read_folder
from clipset.videos.tables import SUFFIXES

Sources = Catalog | str | Path | Sequence[str | Path]


def list_new_videos(sources: Sources) -> Catalog:
    """The videos behind some paths, each once, in the order given.

    A file's id is its path as given, also in a folder; a catalog's videos keep their ids. A file
    that does not exist is listed: whoever opens it says so.
    """
    if isinstance(sources, Catalog):
        return sources
    paths = [Path(sources)] if isinstance(sources, str | Path) else [Path(path) for path in sources]
    if not paths:
        raise CatalogError("no video is named; give files, folders or a catalog")
    found: dict[str, Video] = {}
    for video in _videos(paths):
        before = found.setdefault(video.id, video)
        if before.path.absolute() != video.path.absolute():
            raise CatalogError(
                f"{before.path} and {video.path} are both called {video.id!r}; "
                f"give one of them another id"
            )
    return Catalog(name=paths[0].name or "videos", videos=tuple(found.values()))


def _videos(paths: Iterable[Path]) -> Iterable[Video]:
    for path in paths:
        if path.is_dir():
            for video in read_folder(path):
                yield replace(video, id=str(path / video.id))
        elif path.suffix.lower() in SUFFIXES:
            yield from read_catalog(path)
        else:
            yield Video(id=str(path), path=path)
