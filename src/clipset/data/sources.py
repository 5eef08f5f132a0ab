"""read_videos: whatever names videos (a folder, a catalog file) as a Catalog."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Literal

from clipset.data.catalog import Catalog, read_catalog
from clipset.data.datasets.lvu import TASKS, read_lvu
from clipset.data.datasets.official import read_hmdb51, read_kinetics, read_ssv2, read_ucf101
from clipset.data.folder import read_folder
from clipset.data.tables import SUFFIXES
from clipset.errors import CatalogError

Dataset = Literal["ucf101", "hmdb51", "kinetics", "ssv2", "lvu"]


def read_videos(source: Path, *, name: str | None = None) -> Catalog:
    """The videos in a folder or in a catalog file."""
    if os.path.isdir(source):  # noqa: PTH112 (never raises)
        return read_folder(source, name=name)
    if not os.path.exists(source):  # noqa: PTH110 (never raises)
        raise CatalogError(f"there is no folder or catalog at {source}")
    if source.suffix.lower() not in SUFFIXES:
        raise CatalogError(
            f"{source} is neither a folder nor a catalog; a catalog ends in {', '.join(SUFFIXES)}"
        )
    return read_catalog(source, name=name)


def read_dataset(
    dataset: Dataset, videos: Path, lists: Path | None, *, fold: int = 1, task: str | None = None
) -> Catalog:
    """A dataset of the field, by its official lists; files that are missing stay listed."""
    if lists is None:
        raise CatalogError(f"{dataset} needs its official lists; say where they are with --lists")
    if dataset == "ucf101":
        return read_ucf101(videos, lists, fold=fold)
    if dataset == "hmdb51":
        return read_hmdb51(videos, lists, fold=fold)
    if dataset == "kinetics":
        return read_kinetics(videos, *(sorted(lists.glob("*.csv")) if lists.is_dir() else [lists]))
    if dataset == "ssv2":
        return read_ssv2(videos, lists)
    if task is None:
        raise CatalogError(f"LVU has several tasks; choose one with --task: {', '.join(TASKS)}")
    return read_lvu(videos, lists, task=task)
