"""Tasks: the label sets and official splits of a dataset, each with a catalog of its own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from clipset.config import near_names
from clipset.data.catalog import Catalog, Video, clean_catalog, read_catalog, read_catalog_table
from clipset.data.datasets import (
    LVU_TASK_GROUPS,
    LVU_TASKS,
    OFFICIAL_SPLITS,
    DatasetName,
    read_dataset,
)
from clipset.data.splits import assign_splits, hold_out_groups
from clipset.data.tables import SUFFIXES
from clipset.errors import CatalogError
from clipset.text import text_path

RESERVED_NAMES = ("auto", "all", "store", "extract", "scores", "report")
"""Words for several tasks, and steps and folders of a run beside those of its tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Which videos are read, how they are split, and which split is scored."""

    format: Literal["auto", "folder", "table", "ucf101", "hmdb51", "kinetics", "ssv2", "lvu"] = (
        "auto"
    )
    """a folder, a table (auto: either of them), or a dataset with its official lists"""
    task: str = "auto"
    """a task by its name (split-2, director, one of `tasks`), or all (auto: split-1, else all)"""
    test_split: Literal["auto", "test", "val"] = "auto"
    """the split that is scored (auto: test if it has labels, else val)"""
    test_fraction: float = 0.25
    """fraction of the labelled videos used for testing, if there are no splits"""
    split_seed: int = 0
    """seed of the random split; independent of the seed of training"""
    validation_groups: tuple[str, ...] = ()
    """groups of the train split that become the split val"""
    lists: str = ""
    """path of the official lists, relative to the dataset's folder (found there if empty)"""
    name: str = ""
    """name of the data in reports and tables (empty: name of the file or folder)"""
    columns: dict[str, str] = field(default_factory=dict)
    """tables: columns with uncommon names, such as {label = "topic"}"""
    tasks: dict[str, dict[str, str]] = field(default_factory=dict)
    """tables: several tasks, each with the columns of its own ({label = "order"})"""

    def __post_init__(self) -> None:
        if not 0 < self.test_fraction < 1:
            raise CatalogError(
                f"data.test_fraction must be between 0 and 1, got {self.test_fraction}"
            )
        if not 0 <= self.split_seed < 2**32:
            raise CatalogError(
                f"data.split_seed must be at least 0 and less than 2^32, got {self.split_seed}"
            )
        task_names = ["auto", "all", *self.tasks]
        if self.format == "lvu" and not self.tasks:
            task_names = [*LVU_TASK_GROUPS, *LVU_TASKS]
        elif self.format in ("ucf101", "hmdb51") and not self.tasks:
            task_names += OFFICIAL_SPLITS
        if self.task not in task_names:
            near = near_names(self.task, task_names)
            raise CatalogError(f"data.task: unknown task {self.task!r}; {near}")
        for task_name, columns in self.tasks.items():
            if not task_name.isidentifier() or not {"label", "target"} & set(columns):
                raise CatalogError(
                    f"data.tasks: a task needs an identifier as its name, and the column of its "
                    f"label or target, got {task_name!r} with {columns}"
                )
            if task_name in RESERVED_NAMES:
                raise CatalogError(
                    f"data.tasks: a task cannot be called {task_name!r}, as a part of a run is; "
                    f"use another name"
                )

    @property
    def official(self) -> bool:
        """Whether the splits are those of the dataset's authors."""
        return self.format in get_args(DatasetName)

    @property
    def averaged(self) -> bool:
        """Whether the tasks are official splits of one dataset, whose scores are averaged."""
        return self.format != "lvu" and not self.tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A label set or an official split of the videos. The name is empty if it is the only one."""

    name: str = ""
    catalog: Catalog


def read_tasks(source: str | Path | Catalog, config: DataConfig) -> tuple[Task, ...]:
    """The tasks of a dataset, with splits; all of them share the same videos."""
    catalogs = _read_catalogs(Path(source) if isinstance(source, str) else source, config)
    tasks = []
    for task_name, catalog in catalogs.items():
        catalog = assign_splits(catalog, test_fraction=config.test_fraction, seed=config.split_seed)
        catalog = hold_out_groups(catalog, config.validation_groups)
        catalog = _select_test_split(catalog, config.test_split)
        tasks.append(Task(name=task_name if len(catalogs) > 1 else "", catalog=catalog))
    return tuple(tasks)


def join_tasks(tasks: Sequence[Task]) -> Catalog:
    """All videos of some tasks; annotations on which the tasks differ are left out."""
    if len(tasks) == 1:
        return tasks[0].catalog
    videos: dict[str, Video] = {}
    for video in (video for task in tasks for video in task.catalog):
        first = videos.setdefault(video.id, video)
        if (first.path, first.end) != (video.path, video.end):
            raise CatalogError(
                f"{video.id!r} is {first.path} in one task and {video.path} in another"
            )
        videos[video.id] = replace(
            first,
            label=first.label if first.label == video.label else None,
            split=first.split if first.split == video.split else None,
            target=first.target if first.target == video.target else None,
        )
    first_name = tasks[0].catalog.name
    return Catalog(name=first_name.rpartition("-")[0] or first_name, videos=tuple(videos.values()))


def _read_catalogs(source: Path | Catalog, config: DataConfig) -> dict[str, Catalog]:
    """The catalog of each task by the task's name; `""` if there is only one by nature."""
    if isinstance(source, Catalog):
        _refuse_columns(config, f"the catalog {source.name!r}")
        return {"": clean_catalog(source)}
    if config.official:
        _refuse_columns(config, f"the dataset {config.format}")
        lists = source / text_path(config.lists) if config.lists else None
        return read_dataset(config.format, source, lists, config.task)
    if config.format == "folder" and not source.is_dir():
        raise CatalogError(f"{source} is not a folder, but data.format is 'folder'")
    if config.format == "table" and not source.is_file():
        raise CatalogError(f"{source} is not a file, but data.format is 'table'")
    if config.format != "table" and not (source.is_file() and source.suffix.lower() in SUFFIXES):
        _refuse_columns(config, str(source))
        return {"": read_catalog(source)}
    if not config.tasks:
        return {"": read_catalog_table(source, columns=config.columns)}
    catalogs = {}
    for task_name in config.tasks if config.task in ("auto", "all") else (config.task,):
        columns = config.columns | config.tasks[task_name]
        catalog = read_catalog_table(source, name=f"{source.stem}-{task_name}", columns=columns)
        has_label = "label" in config.tasks[task_name]
        catalogs[task_name] = catalog.only(
            replace(video, target=None) if has_label else replace(video, label=None)
            for video in catalog
        )
    return catalogs


def _refuse_columns(config: DataConfig, source: str) -> None:
    if config.columns or config.tasks:
        raise CatalogError(
            f"data.columns and data.tasks name columns of a table, but {source} is not a table; "
            f"give a file that ends in {', '.join(SUFFIXES)}"
        )


def _select_test_split(catalog: Catalog, test_split: str) -> Catalog:
    """Leave out the videos of `test` if the scores are those of `val`."""
    if test_split == "auto":
        return catalog
    if not any(video.split == test_split and video.is_labelled for video in catalog):
        raise CatalogError(
            f"no video of the split {test_split!r} has a label, but data.test_split is "
            f"{test_split!r}"
        )
    if test_split == "test":
        return catalog
    return catalog.only(video for video in catalog if video.split != "test")
