"""Public datasets as catalogs, by their official lists."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from clipset.data.catalog import Catalog
from clipset.data.datasets.hmdb51 import read_hmdb51
from clipset.data.datasets.kinetics import read_kinetics
from clipset.data.datasets.lvu import TASKS, read_lvu
from clipset.data.datasets.ssv2 import read_ssv2
from clipset.data.datasets.ucf101 import read_ucf101
from clipset.errors import CatalogError

DatasetName = Literal["ucf101", "hmdb51", "kinetics", "ssv2", "lvu"]


def read_dataset(
    dataset: DatasetName,
    videos: Path,
    lists: Path | None,
    *,
    fold: int = 1,
    task: str | None = None,
) -> Catalog:
    """The catalog of a dataset, by its official lists; it includes missing files."""
    if lists is None:
        raise CatalogError(f"{dataset} needs its official lists; give their folder with --lists")
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
