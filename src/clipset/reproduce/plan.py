"""What has to be run for each table of the paper."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clipset.config import near_names
from clipset.errors import ConfigError
from clipset.evaluation.suite import ROWS
from clipset.recipe import Recipe, find_recipe, read_recipe
from clipset.report.wording import row_name
from clipset.reproduce.paper import BACKBONES, DATASETS, TABLES, TASKS, PaperTable

BY_NAME = {row_name(*row): row for row in ROWS}
ABLATION = (  # what the paper's ablations start from
    "pretrain.epochs=200",
    "pretrain.min_steps=1",
    "pretrain.batch=512",
    "pretrain.clips_per_set=8",
    "pretrain.mask_ratio=0.25",
    "pretrain.model.width=256",
    "pretrain.model.layers=2",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """A row to run: the probe, and in what its recipe differs from the table's."""

    row: str
    features: str
    probe: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A table as work: its columns are backbones, tasks, or a dataset with a backbone."""

    table: PaperTable
    columns: Literal["backbones", "tasks", "datasets"]
    recipe: str
    trials: tuple[Trial, ...]
    changes: tuple[str, ...] = ()

    @property
    def backbones(self) -> tuple[str, ...]:
        """The paper's backbones in this table, by our names."""
        words = (*self.table.columns, *self.table.rows)
        found = (title for word in words for title in (word, *word.split(", ")))
        return tuple(dict.fromkeys(BACKBONES[title] for title in found if title in BACKBONES))


def find_plan(name: str) -> Plan:
    """The plan of a table."""
    if name not in TABLES:
        raise ConfigError(f"the paper has no table {name!r}; {near_names(name, TABLES)}")
    table = TABLES[name]
    if name.startswith("ablation-"):
        return Plan(
            table=table,
            columns="datasets",
            recipe="paper",
            changes=ABLATION,
            trials=tuple(
                Trial(row=row, features="scale", probe="finetune", changes=_changes(name, row))
                for row in table.rows
            ),
        )
    names = dict.fromkeys(row.split(", ")[-1] for row in table.rows if row not in table.quoted)
    return Plan(
        table=table,
        columns="tasks" if name == "lvu" else "backbones",
        recipe=name.replace("-", "_"),
        trials=tuple(
            Trial(row=row, features=BY_NAME[row][0], probe=BY_NAME[row][1]) for row in names
        ),
    )


def _changes(table: str, row: str) -> tuple[str, ...]:
    """The settings of a row of an ablation."""
    numbers = [word.strip(",") for word in row.split() if word[0].isdigit()]
    if table == "ablation-losses":  # with 20 % hidden, as the paper says below its table
        losses = {"set contrastive loss": "set", "masked clip loss": "masked"}.get(row)
        which = (f"pretrain.model.losses={losses}",) if losses else ()
        return ("pretrain.mask_ratio=0.2", *which)
    if table == "ablation-masking":
        return (f"pretrain.mask_ratio={row}",)
    if table == "ablation-capacity":
        return (f"pretrain.model.width={numbers[0]}", f"pretrain.model.layers={numbers[1]}")
    return (f"pretrain.clips_per_set={numbers[0]}", f"pretrain.batch={numbers[-1]}")


def read_base(plan: Plan, recipe: Path | None, changes: Sequence[str]) -> Recipe:
    """The recipe that a table's cells start from."""
    return read_recipe(recipe or find_recipe(plan.recipe), (*plan.changes, *changes))


def backbone_title(name: str) -> str:
    """What the paper calls a backbone; its own name without folders if the paper has it not."""
    titles = {ours: theirs for theirs, ours in BACKBONES.items()}
    return titles.get(name, name.replace("\\", "/").rpartition("/")[2])


def task_title(task: str) -> str:
    """What the paper calls a task of LVU."""
    return {ours: theirs for theirs, ours in TASKS.items()}.get(task, task)


def dataset_title(name: str) -> str:
    """What the paper's ablations call a dataset."""
    return {ours: theirs for theirs, ours in DATASETS.items()}.get(name, name)
