"""The contents of results/*.json: finished runs, tables and studies, without local paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clipset.config import build, read_json, to_mapping
from clipset.files import write_json

HERE = Path(__file__).resolve().parent
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """One task of a run: its scores and paired differences."""

    name: str = ""
    counts: dict[str, int]
    """videos, classes, failed, and the videos of each split"""
    split: str
    """the split that was evaluated"""
    rows: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    training_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """One cell of a table of the paper on our data."""

    row: str
    column: str
    task: str = ""
    record: dict[str, Any]
    seconds: float
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished run or table, with everything needed to reproduce it."""

    kind: Literal["run", "table"]
    dataset: str
    source: str
    backbone: str
    preset: str
    label_fraction: float | None = None
    command: str
    recipe_file: str
    recipe_text: str
    recipe: dict[str, Any]
    fingerprint: str
    changes: list[str]
    validation: str
    """the videos that hyperparameters were selected on"""
    seeds: list[int]
    date: str
    commit: str
    clipset: str
    machine: dict[str, str]
    tasks: list[TaskResult] = field(default_factory=list)
    table: str = ""
    title: str = ""
    table_rows: list[str] = field(default_factory=list)
    cells: list[CellResult] = field(default_factory=list)
    paper: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def variant(self) -> str:
        """How the model was trained: the preset and other changes.

        Changes to probes are in the command.
        """
        own = [change for change in self.changes if not change.startswith(NOT_TRAINING)]
        probes = [change for change in own if change.startswith(PROBES)]
        own = [change for change in own if change not in probes]
        every = any(change.startswith(EVERY_PROBE) for change in probes)
        label = "other probes" if every else "other fine-tuning"
        return ", ".join([self.preset, *own, *([label] if probes else [])])

    @property
    def split(self) -> str:
        """The splits that were evaluated."""
        splits = {task.split for task in self.tasks}
        splits |= {str(cell.record["split"]) for cell in self.cells}
        return ", ".join(sorted(splits))


NOT_TRAINING = (
    "pretrain.preset=",
    "evaluate.label_fraction=",
    "evaluate.probes=",
    "evaluate.num_seeds=",
    "data.",
)
EVERY_PROBE = (
    "evaluate.test_clips=",
    "evaluate.training.early_stopping=",
)  # these change heads, too
PROBES = ("evaluate.training.", *EVERY_PROBE)


@dataclass(frozen=True, slots=True, kw_only=True)
class RunDifference:
    """The same probe of two runs (by index), on the same videos."""

    run: int = 0
    baseline: int = 0
    task: str = ""
    features: str
    probe: str
    metric: str
    difference: float
    interval: tuple[float, float]
    p: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """Results that belong together, and the differences of the first run to the others."""

    format: int = FORMAT
    name: str
    results: list[Result]
    differences: list[RunDifference] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeScore:
    """A score of an ablation over all folds, and its difference to the recipe on the same videos.

    There are no intervals if nothing in the study was trained with two seeds.
    """

    features: str
    probe: str
    value: float
    interval: tuple[float, float] | None
    difference: float | None = None
    difference_interval: tuple[float, float] | None = None
    p: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ablation:
    """One change to a recipe, and its scores."""

    name: str
    description: str
    changes: list[str]
    store: str
    training_seconds: float
    num_trainings: int
    rows: list[ProbeScore]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeDifference:
    """The difference of two probes of a recipe, over all folds and seeds."""

    probe: tuple[str, str]
    baseline: tuple[str, str]
    value: float
    interval: tuple[float, float]
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class AblationStudy:
    """Ablations of a recipe by cross-validation on the training videos; the recipe comes first.

    `seed_std`: standard deviation of a fold's score over training seeds.
    `differences`: SCALE probes against their baselines.
    `training_seeds`: the seeds of the recipe itself.
    Without folds, models were trained on all training videos and evaluated on the test videos.
    """

    format: int = FORMAT
    name: str
    dataset: str
    backbone: str
    recipe_file: str
    recipe: dict[str, Any]
    changes: list[str]
    stores: list[str]
    folds: int
    videos: int
    num_probe_seeds: int
    seed_std: dict[str, float]
    date: str
    commit: str
    machine: dict[str, str]
    ablations: list[Ablation]
    differences: list[ProbeDifference] = field(default_factory=list)
    training_seeds: list[int] = field(default_factory=list)


def write_result_file(content: ResultFile, folder: Path = HERE) -> Path:
    """Write `NAME.json`."""
    path = folder / f"{content.name}.json"
    write_json(path, to_mapping(content))
    return path


def read_result_files(folder: Path = HERE) -> list[ResultFile]:
    """All files of a folder, in the order of their names."""
    paths = sorted(folder.glob("*.json"))
    return [build(ResultFile, read_json(path), path.name) for path in paths]


def read_studies(folder: Path = HERE) -> list[AblationStudy]:
    """All studies, in the order of their names."""
    paths = sorted((folder / "studies").glob("*.json"))
    return [build(AblationStudy, read_json(path), path.name) for path in paths]
