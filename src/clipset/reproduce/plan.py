"""The runs that each table of the paper needs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from clipset.config import near_names
from clipset.errors import ConfigError
from clipset.probes.config import EvaluateConfig
from clipset.probes.registry import probe_key
from clipset.recipe import Recipe, find_recipe, read_recipe
from clipset.report.wording import row_name
from clipset.reproduce.paper import BACKBONES, DATASETS, TABLES, TASKS, PaperTable

PROBE_ROWS = {row_name(*probe_key(name)): probe_key(name) for name in EvaluateConfig().probes}
ABLATION_CHANGES = ("pretrain.preset=paper", "pretrain.epochs=200")  # for any recipe


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPlan:
    """A row to run: the probe, and its changes to the table's recipe."""

    row: str
    features: str
    probe: str
    changes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePlan:
    """The rows and columns to run; a column is a backbone, a task, or a dataset with a backbone."""

    table: PaperTable
    columns: Literal["backbones", "tasks", "datasets"]
    recipe: str
    rows: tuple[RowPlan, ...]
    changes: tuple[str, ...] = ()

    @property
    def backbones(self) -> tuple[str, ...]:
        """The paper's backbones in this table, by our names."""
        headings = (*self.table.columns, *self.table.rows)
        titles = (title for heading in headings for title in (heading, *heading.split(", ")))
        return tuple(dict.fromkeys(BACKBONES[title] for title in titles if title in BACKBONES))


def find_plan(name: str) -> TablePlan:
    """The plan of a table."""
    if name not in TABLES:
        raise ConfigError(f"the paper has no table {name!r}; {near_names(name, TABLES)}")
    table = TABLES[name]
    if name.startswith("ablation-"):
        return TablePlan(
            table=table,
            columns="datasets",
            recipe="paper",
            changes=ABLATION_CHANGES,
            rows=tuple(
                RowPlan(
                    row=row,
                    features="scale",
                    probe="finetune",
                    changes=_ablation_changes(name, row),
                )
                for row in table.rows
            ),
        )
    names = dict.fromkeys(row.split(", ")[-1] for row in table.rows if row not in table.quoted)
    return TablePlan(
        table=table,
        columns="tasks" if name == "lvu" else "backbones",
        recipe=name.replace("-", "_"),
        rows=tuple(
            RowPlan(row=row, features=PROBE_ROWS[row][0], probe=PROBE_ROWS[row][1]) for row in names
        ),
    )


def _ablation_changes(table: str, row: str) -> tuple[str, ...]:
    """The settings of a row of an ablation."""
    numbers = [word.strip(",") for word in row.split() if word[0].isdigit()]
    if table == "ablation-losses":  # 20 % masked, as the paper says below its table
        losses = {"set contrastive loss": "set", "masked clip loss": "masked"}.get(row)
        change = (f"pretrain.model.losses={losses}",) if losses else ()
        return ("pretrain.mask_ratio=0.2", *change)
    if table == "ablation-masking":
        return (f"pretrain.mask_ratio={row}",)
    if table == "ablation-capacity":
        return (f"pretrain.model.width={numbers[0]}", f"pretrain.model.num_layers={numbers[1]}")
    return (f"pretrain.clips_per_set={numbers[0]}", f"pretrain.batch_size={numbers[-1]}")


def read_table_recipe(plan: TablePlan, recipe: Path | None, changes: Sequence[str]) -> Recipe:
    """The recipe of a table, before the changes of a row."""
    return read_recipe(recipe or find_recipe(plan.recipe), (*plan.changes, *changes))


def backbone_title(name: str) -> str:
    """The name of a backbone in the paper, or its own name without folders."""
    titles = {name: title for title, name in BACKBONES.items()}
    return titles.get(name, name.replace("\\", "/").rpartition("/")[2])


def task_title(task: str) -> str:
    """The name of a task of LVU in the paper."""
    return {name: title for title, name in TASKS.items()}.get(task, task)


def dataset_title(name: str) -> str:
    """The name of a dataset in the paper's ablations."""
    return {name: title for title, name in DATASETS.items()}.get(name, name)
