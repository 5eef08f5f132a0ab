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
RESOURCES = "resources"  # the table of costs, which has no recipe: see resources.py
ABLATION_CHANGES = (  # for any recipe
    "pretrain.preset=paper", "pretrain.epochs=200", "evaluate.training.ordered_weights=[0.0]",
)  # fmt: skip
PAPER_TITLES = {name: title for title, name in (BACKBONES | DATASETS | TASKS).items()}


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


def find_plan(table_name: str) -> TablePlan:
    """The plan of a table."""
    if table_name not in TABLES:
        raise ConfigError(
            f"the paper has no table {table_name!r}; {near_names(table_name, TABLES)}"
        )
    if table_name == RESOURCES:
        raise ConfigError("the table resources has no recipe: it measures training steps")
    table = TABLES[table_name]
    if table_name.startswith("ablation-"):
        rows = tuple(
            RowPlan(
                row=row,
                features="scale",
                probe="finetune",
                changes=_ablation_changes(table_name, row),
            )
            for row in table.rows
        )
        return TablePlan(
            table=table, columns="datasets", recipe="paper", changes=ABLATION_CHANGES, rows=rows
        )
    row_names = dict.fromkeys(row.split(", ")[-1] for row in table.rows if row not in table.quoted)
    return TablePlan(
        table=table,
        columns="tasks" if table_name == "lvu" else "backbones",
        recipe=table_name.replace("-", "_"),
        rows=tuple(
            RowPlan(row=row, features=PROBE_ROWS[row][0], probe=PROBE_ROWS[row][1])
            for row in row_names
        ),
    )


def _ablation_changes(table_name: str, row: str) -> tuple[str, ...]:
    """The settings of a row of an ablation."""
    numbers = [word.strip(",") for word in row.split() if word[0].isdigit()]
    if table_name == "ablation-losses":  # 20 % masked, as the paper says below its table
        loss_name = {"set contrastive loss": "set", "masked clip loss": "masked"}.get(row)
        loss_change = (f"pretrain.model.losses={loss_name}",) if loss_name else ()
        return ("pretrain.mask_ratio=0.2", *loss_change)
    if table_name == "ablation-masking":
        return (f"pretrain.mask_ratio={row}",)
    if table_name == "ablation-capacity":
        return (f"pretrain.model.width={numbers[0]}", f"pretrain.model.num_layers={numbers[1]}")
    return (f"pretrain.clips_per_set={numbers[0]}", f"pretrain.batch_size={numbers[-1]}")


def read_table_recipe(plan: TablePlan, recipe_path: Path | None, changes: Sequence[str]) -> Recipe:
    """The recipe of a table, before the changes of a row."""
    return read_recipe(recipe_path or find_recipe(plan.recipe), (*plan.changes, *changes))


def paper_title(name: str) -> str:
    """The paper's name of a backbone, dataset or task; another name without its folders."""
    return PAPER_TITLES.get(name, name.replace("\\", "/").rpartition("/")[2])
