"""New videos from files, folders and catalogs, as one catalog."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from clipset.data.catalog import Catalog, Video, read_catalog_table, read_folder
from clipset.data.tables import SUFFIXES
from clipset.errors import CatalogError
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
    videos: dict[str, Video] = {}
    for video in _read_videos(paths):
        first = videos.setdefault(video.id, video)
        if first.path.absolute() != video.path.absolute():
            raise CatalogError(
                f"{first.path} and {video.path} are both called {video.id!r}; "
                f"give one of them another id"
            )
    return Catalog(name=name_text(paths[0].name) or "videos", videos=tuple(videos.values()))


def _read_videos(paths: Sequence[Path]) -> Iterable[Video]:
    ids = unique_ids(path_text(path) for path in paths)
    for path in paths:
        if os.path.isdir(path):  # noqa: PTH112 (never raises)
            for video in read_folder(path):
                yield replace(video, id=str(Path(ids[path_text(path)]) / video.id))
        elif path.suffix.lower() in SUFFIXES:
            yield from read_catalog_table(path)
        else:
            yield Video(id=ids[path_text(path)], path=path)
