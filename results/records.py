"""What results/*.json hold: finished runs and tables, without anything of the machine's paths."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from clipset.config import build, read_json, to_mapping, write_json

HERE = Path(__file__).resolve().parent
FORMAT = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class PartResult:
    """One problem of a run: its rows and whether they really differ."""

    name: str = ""
    counts: dict[str, int]
    """videos, classes, failed, and the videos of each split"""
    split: str
    """the split that was judged"""
    rows: list[dict[str, Any]]
    comparisons: list[dict[str, Any]]
    training_seconds: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class CellResult:
    """One place of a table of the paper on our data."""

    row: str
    column: str
    part: str = ""
    record: dict[str, Any]
    seconds: float
    date: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A finished run or table, and what is needed to make it again."""

    kind: Literal["run", "table"]
    dataset: str
    source: str
    backbone: str
    preset: str
    low_shot: float | None = None
    command: str
    recipe_file: str
    recipe_text: str
    recipe: dict[str, Any]
    fingerprint: str
    changes: list[str]
    validation: str
    """what rates and epochs were chosen on"""
    seeds: list[int]
    date: str
    commit: str
    clipset: str
    machine: dict[str, str]
    parts: list[PartResult] = field(default_factory=list)
    table: str = ""
    title: str = ""
    table_rows: list[str] = field(default_factory=list)
    cells: list[CellResult] = field(default_factory=list)
    paper: list[tuple[str, str, str]] = field(default_factory=list)

    @property
    def variant(self) -> str:
        """How the model was trained: the preset, and what else was set.

        How probes were trained otherwise than in the recipe is in the command.
        """
        own = [change for change in self.changes if not change.startswith(NOT_TRAINING)]
        probes = [change for change in own if change.startswith(PROBES)]
        own = [change for change in own if change not in probes]
        every = any(change.startswith(EVERY_PROBE) for change in probes)
        told = "other probes" if every else "other fine-tuning"
        return ", ".join([self.preset, *own, *([told] if probes else [])])

    @property
    def split(self) -> str:
        """The splits that were judged."""
        judged = {part.split for part in self.parts}
        judged |= {str(cell.record["split"]) for cell in self.cells}
        return ", ".join(sorted(judged))


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
class Between:
    """The same row of two runs, on the same videos."""

    of: int
    against: int
    part: str
    features: str
    probe: str
    metric: str
    difference: float
    interval: tuple[float, float]
    p: float
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFile:
    """Results that belong together, and how the first run compares with each other one."""

    format: int = FORMAT
    name: str
    results: list[Result]
    between: list[Between] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class IdeaRow:
    """A row of an idea over all folds; how far it is from the recipe's on the same videos.

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
class Idea:
    """One change to a recipe, and what came of it."""

    name: str
    what: str
    changes: list[str]
    store: str
    training_seconds: float
    seeds: int
    rows: list[IdeaRow]


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """How much better a row of a recipe is than another, over all folds and seeds."""

    row: tuple[str, str]
    other: tuple[str, str]
    value: float
    interval: tuple[float, float]
    p: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Study:
    """Ideas against a recipe, by cross-validation over the training videos; the recipe first.

    `seeds` are those of the probes on one model; an idea has its own number of trainings.
    `trainings`: the seeds that the recipe itself was trained with.
    `spreads`: by how much the score of a fold moves from one seed of the training to another.
    `claims`: what the method promises, of those rows that were run.
    Without folds, all training videos were learned from and the test videos judged.
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
    seeds: int
    spreads: dict[str, float]
    date: str
    commit: str
    machine: dict[str, str]
    ideas: list[Idea]
    claims: list[Claim] = field(default_factory=list)
    trainings: list[int] = field(default_factory=list)


def write_result_file(content: ResultFile, folder: Path = HERE) -> Path:
    """Write `NAME.json`."""
    path = folder / f"{content.name}.json"
    write_json(path, to_mapping(content))
    return path


def read_result_files(folder: Path = HERE) -> list[ResultFile]:
    """All files of a folder, in the order of their names."""
    paths = sorted(folder.glob("*.json"))
    return [build(ResultFile, read_json(path), path.name) for path in paths]


def write_study(content: Study, folder: Path = HERE) -> Path:
    """Write `studies/NAME.json`."""
    path = folder / "studies" / f"{content.name}.json"
    path.parent.mkdir(exist_ok=True)
    write_json(path, to_mapping(content))
    return path


def read_studies(folder: Path = HERE) -> list[Study]:
    """All studies, in the order of their names."""
    paths = sorted((folder / "studies").glob("*.json"))
    return [build(Study, read_json(path), path.name) for path in paths]
