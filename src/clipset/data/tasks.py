"""How a dataset is read and judged: official splits and tasks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, get_args

from clipset.config import near_names
from clipset.data.catalog import Catalog, Video, clean_catalog, read_catalog
from clipset.data.datasets.lvu import CLASSIFICATION, REGRESSION, TASKS, read_lvu
from clipset.data.datasets.official import FOLDS
from clipset.data.folder import read_folder
from clipset.data.sources import Dataset, read_dataset, read_videos
from clipset.data.splits import assign_splits, hold_out_groups
from clipset.data.tables import SUFFIXES
from clipset.errors import CatalogError
from clipset.text import text_path

MARKERS: dict[str, str] = {  # a file that only the folder with a dataset's official lists has
    "ucf101": "trainlist01.txt",
    "hmdb51": "*_test_split1.txt",
    "kinetics": "*.csv",
    "ssv2": "*labels.json",
}
DEPTH = 3  # folders below the given one in which lists are looked for
TASK_GROUPS = {"all": TASKS, "classification": CLASSIFICATION, "regression": REGRESSION}


@dataclass(frozen=True, slots=True, kw_only=True)
class DataConfig:
    """Which videos there are, and who is judged."""

    format: Literal["auto", "folder", "table", "ucf101", "hmdb51", "kinetics", "ssv2", "lvu"] = (
        "auto"
    )
    """what is given: a folder, a table (auto: one of both), or a dataset with its own lists"""
    split: Literal[1, 2, 3, "all"] = 1
    """UCF101 and HMDB51: which official split; all: each of them, and the mean"""
    task: str = "all"
    """LVU: a task, or all, classification, regression; elsewhere one of `tasks`, or all"""
    judge: Literal["auto", "test", "val"] = "auto"
    """the split that scores are from (auto: test where it has labels, else val)"""
    lists: str = ""
    """where in the dataset's folder its lists are (looked for if not given)"""
    name: str = ""
    """what the data is called in reports and tables (the file's or folder's name if not given)"""
    columns: dict[str, str] = field(default_factory=dict)
    """tables: which column holds what, such as {label = "topic"}, where names are not the usual"""
    tasks: dict[str, dict[str, str]] = field(default_factory=dict)
    """tables: several problems on the same videos, each with its columns ({label = "order"})"""
    validation_groups: tuple[str, ...] = ()
    """groups of the train split that become the split val, to make choices or to be judged on"""

    def __post_init__(self) -> None:
        known = ("all", *self.tasks) if self.tasks else (*TASK_GROUPS, *TASKS)
        if self.task not in known:
            whose = "data.tasks" if self.tasks else "LVU"
            raise CatalogError(f"{whose} has no task {self.task!r}; {near_names(self.task, known)}")
        for name, columns in self.tasks.items():
            if not name.isidentifier() or not {"label", "target"} & set(columns):
                raise CatalogError(
                    f"a task has a plain name and names the column of its label or target, "
                    f"got {name!r} with {columns}"
                )

    @property
    def official(self) -> bool:
        """Whether splits are those that a dataset's authors published."""
        return self.format in get_args(Dataset)

    @property
    def averaged(self) -> bool:
        """Whether several parts are repetitions of one problem, of which the mean is taken."""
        return self.format != "lvu" and not self.tasks


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One problem on the videos: an official split or a task. Without a name it is the only one."""

    name: str = ""
    catalog: Catalog


def read_parts(
    source: Path | Catalog, config: DataConfig, *, test_fraction: float, seed: int
) -> tuple[Part, ...]:
    """The problems that a dataset poses; all of them are about the same videos."""
    if isinstance(source, Catalog):
        _refuse_columns(config, f"the catalog {source.name!r}")
        parts = [Part(catalog=clean_catalog(source))]
    elif config.official:
        parts = _read_official(source, config)
    else:
        parts = _read_plain(source, config)
    return tuple(
        replace(
            part,
            catalog=_judged_on(
                hold_out_groups(
                    assign_splits(part.catalog, test_fraction=test_fraction, seed=seed),
                    config.validation_groups,
                ),
                config.judge,
            ),
        )
        for part in parts
    )


def join_parts(parts: Sequence[Part]) -> Catalog:
    """Every video of the parts once. What the parts do not agree on, it does not say."""
    if len(parts) == 1:
        return parts[0].catalog
    videos: dict[str, Video] = {}
    for video in (video for part in parts for video in part.catalog):
        known = videos.setdefault(video.id, video)
        if (known.path, known.end) != (video.path, video.end):
            raise CatalogError(f"{video.id!r} is {known.path} in one part and {video.path} here")
        videos[video.id] = replace(
            known,
            label=known.label if known.label == video.label else None,
            split=known.split if known.split == video.split else None,
            target=known.target if known.target == video.target else None,
        )
    return Catalog(name=_shared_name(parts), videos=tuple(videos.values()))


def _read_plain(source: Path, config: DataConfig) -> list[Part]:
    format = config.format
    if format in ("folder", "table") and not (source.is_dir, source.is_file)[format == "table"]():
        raise CatalogError(f"{source} is no {format}; data.format says that it is one")
    if source.is_file() and (format == "table" or source.suffix.lower() in SUFFIXES):
        return _read_columns(source, config)
    _refuse_columns(config, str(source))
    return [Part(catalog=read_folder(source) if format == "folder" else read_videos(source))]


def _read_columns(table: Path, config: DataConfig) -> list[Part]:
    """The problem of a table's columns, or several that share its videos."""
    if not config.tasks:
        return [Part(catalog=read_catalog(table, columns=config.columns))]
    tasks = config.tasks if config.task == "all" else {config.task: config.tasks[config.task]}
    parts = []
    for name, columns in tasks.items():
        found = read_catalog(table, name=f"{table.stem}-{name}", columns=config.columns | columns)
        other = {"label": None} if "label" not in columns else {"target": None}
        asked = found.only(replace(video, **other) for video in found)  # type: ignore[arg-type]
        parts.append(Part(name=name if len(tasks) > 1 else "", catalog=asked))
    return parts


def _refuse_columns(config: DataConfig, what: str) -> None:
    if config.columns or config.tasks:
        raise CatalogError(
            f"data.columns and data.tasks name columns of a table, and {what} is none; "
            f"give a file that ends in {', '.join(SUFFIXES)}"
        )


def _read_official(folder: Path, config: DataConfig) -> list[Part]:
    if not folder.is_dir():
        raise CatalogError(f"there is no folder of {config.format} at {folder}")
    if config.format == "lvu":
        return _read_tasks(folder, config)
    lists = folder / text_path(config.lists) if config.lists else _find_lists(folder, config.format)
    if config.format in ("ucf101", "hmdb51"):
        folds = FOLDS if config.split == "all" else (config.split,)
        catalogs = [read_dataset(config.format, folder, lists, fold=fold) for fold in folds]
        if len(catalogs) == 1:
            return [Part(catalog=catalogs[0])]
        return [
            Part(name=f"split-{fold}", catalog=catalog)
            for fold, catalog in zip(folds, catalogs, strict=True)
        ]
    assert config.format in ("kinetics", "ssv2")
    return [Part(catalog=read_dataset(config.format, folder, lists))]


def _read_tasks(folder: Path, config: DataConfig) -> list[Part]:
    tasks = TASK_GROUPS.get(config.task, (config.task,))
    lists = folder / text_path(config.lists) if config.lists else _find_tasks(folder, tasks[0])
    durations = next(_look_for(folder, "durations.csv"), None)
    catalogs = {task: read_lvu(folder, lists, task=task, durations=durations) for task in tasks}
    if len(tasks) == 1:
        return [Part(catalog=catalogs[tasks[0]])]
    return [Part(name=task, catalog=catalog) for task, catalog in catalogs.items()]


def _find_lists(folder: Path, format: str) -> Path:
    """The one folder below (or the given one) that holds the official lists."""
    found = sorted({path.parent for path in _look_for(folder, MARKERS[format])})
    if len(found) != 1:
        places = ", ".join(str(path) for path in found) or "nowhere"
        raise CatalogError(
            f"the lists of {format} ({MARKERS[format]}) must be in one folder in {folder}, found: "
            f"{places}; say which with data.lists"
        )
    return found[0]


def _find_tasks(folder: Path, task: str) -> Path:
    found = [path.parent.parent for path in _look_for(folder, f"{task}/train.csv")]
    if not found:
        raise CatalogError(
            f"{folder} holds no lists of LVU ({task}/train.csv); say where they are with data.lists"
        )
    return found[0]


def _look_for(folder: Path, pattern: str) -> Iterator[Path]:
    """Files of a pattern, the ones nearest to the folder first."""
    return (
        path for depth in range(DEPTH + 1) for path in sorted(folder.glob("*/" * depth + pattern))
    )


def _judged_on(catalog: Catalog, judge: str) -> Catalog:
    """Leave out the videos of `test` where scores are to be from `val`."""
    if judge == "auto":
        return catalog
    if not any(
        video.split == judge and (video.label is not None or video.target is not None)
        for video in catalog
    ):
        raise CatalogError(f"no video of the split {judge!r} has a label, but data.judge names it")
    if judge == "test":
        return catalog
    return catalog.only(video for video in catalog if video.split != "test")


def _shared_name(parts: Sequence[Part]) -> str:
    return parts[0].catalog.name.rpartition("-")[0] or parts[0].catalog.name
