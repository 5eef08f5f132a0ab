"""Collect finished runs, or folders of `clipset reproduce`, in one file for results/write.py.

    python results/collect.py runs/lsa64 runs/lsa64_low_shot runs/lsa64_paper --name lsa64_lite0

Runs with the same data, backbone and fraction of labels are compared: the first with each other
one.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path, PurePath
from typing import Any

from recipes import as_options, match_recipe
from records import (
    HERE,
    CellResult,
    Result,
    ResultFile,
    RunDifference,
    TaskResult,
    write_result_file,
)
from tables import MODEL_ROWS

from clipset.config import build, fingerprint, read_json, to_mapping
from clipset.data.catalog import read_catalog_table
from clipset.errors import ClipsetError, RunError
from clipset.evaluation.results import ProbeResult, read_predictions, read_results
from clipset.evaluation.statistics import compare_values
from clipset.features.store import FeatureStore
from clipset.recipe import Recipe, read_recipe
from clipset.reproduce.plan import find_plan, read_table_recipe
from clipset.reproduce.table import TABLE_FILE, Cell, TableFile, read_table_file
from clipset.runs import read_run

OMITTED_FIELDS = ("per_class", "confusion")


def collect(folders: Sequence[Path], name: str, out: Path = HERE) -> Path:
    """Write `NAME.json` from finished runs and tables."""
    results = [collect_one(folder) for folder in folders]
    first: dict[tuple[str, str, float | None], int] = {}
    differences: list[RunDifference] = []
    for index, result in enumerate(results):
        if result.kind == "run":
            key = (result.dataset, result.backbone, result.label_fraction)
            before = first.setdefault(key, index)
            differences += compare_runs(before, index, folders) if before != index else []
    content = ResultFile(name=name, results=results, differences=differences)
    return write_result_file(content, out)


def collect_one(folder: Path) -> Result:
    """A finished run or table."""
    return collect_table(folder) if (folder / TABLE_FILE).is_file() else collect_run(folder)


def collect_run(folder: Path) -> Result:
    """The result of a run's folder."""
    run = read_run(folder)
    if not run.get("steps") or run["steps"][-1]["name"] != "report" or not read_results(folder):
        raise RunError(f"{folder} is not a finished run with scores; finish `clipset run` first")
    recipe = build(Recipe, run["recipe"], str(folder / "run.json"))
    path, changes = match_recipe(recipe, read_recipe)
    tasks = [collect_task(path, folder) for path in task_folders(folder)]
    seed = f" --seed {run['seed']}" if run["seed"] else ""
    source = str(run.get("source") or run["name"])
    command = (
        f"clipset run {source} --recipe recipes/{path.name} --out runs/{folder.resolve().name}"
    )
    rows = [row for task in tasks for row in task.rows]
    return Result(
        kind="run",
        dataset=str(run["name"]),
        source=source,
        tasks=tasks,
        command=f"{command}{as_options(names_only(changes))}{seed}",
        validation="; ".join(
            dict.fromkeys(row["selected_on"] for row in rows if row["selected_on"])
        ),
        seeds=sorted({seed for row in rows for seed in row["seeds"]}),
        date=str(run["started"]),
        **common_fields(recipe, path, changes, run["environment"]),
    )


def task_folders(folder: Path) -> list[Path]:
    """The folders of a run's tasks, or of the run itself if it has one."""
    steps = [str(step["name"]) for step in read_run(folder)["steps"]]
    return [folder / name for name in steps if (folder / name / "results.json").is_file()] or [
        folder
    ]


def task_name(folder: Path, run: Path) -> str:
    """The name of a task; empty if a run has only one."""
    return "" if folder == run else folder.name


def collect_task(folder: Path, run: Path) -> TaskResult:
    """One task of a run."""
    catalog = read_catalog_table(folder / "catalog.csv")
    splits = Counter(video.split or "none" for video in catalog)
    counts = {"videos": len(catalog), "classes": len(catalog.classes), **splits}
    if (run / "store" / "ledger.sqlite").is_file():
        counts["failed"] = len(FeatureStore(run / "store", catalog).failed)
    rows = [lean_record(result) for result in read_results(folder)]
    return TaskResult(
        name=task_name(folder, run),
        counts=counts,
        split=str(rows[0]["split"]),
        rows=rows,
        comparisons=read_json(folder / "comparisons.json"),
        training_seconds=training_seconds(folder / "model" / "metrics.jsonl"),
    )


def lean_record(result: ProbeResult) -> dict[str, Any]:
    """A result without its matrices."""
    record: dict[str, Any] = to_mapping(result)
    return {name: value for name, value in record.items() if name not in OMITTED_FIELDS}


def training_seconds(metrics: Path) -> float | None:
    """The seconds of all epochs of pre-training."""
    if not metrics.is_file():
        return None
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines() if line]
    return float(sum(line["seconds"] for line in lines))


def collect_table(folder: Path) -> Result:
    """The result of a folder of `clipset reproduce`."""
    table = read_table_file(folder)
    done = [cell for cell in table.cells if cell.status == "done"]
    missing = [cell.row for cell in table.cells if cell.status == "failed"]
    if missing or not done:
        raise RunError(f"{folder} lacks {missing[0] if missing else 'all rows'}; finish it first")
    recipe, path, changes = table_recipe(table, done[-1])
    command = f"clipset reproduce {table.table} --store {table.data} --recipe recipes/{path.name}"
    return Result(
        kind="table",
        dataset=done[-1].column.rpartition(", ")[0] or table.data,
        source=table.data,
        table=table.table,
        title=table.title,
        table_rows=[row for row in table.rows if row not in table.quoted],
        cells=[collect_cell(cell) for cell in done],
        paper=table.paper,
        command=f"{command} --out tables/{table.table}{as_options(names_only(changes))}",
        validation="; ".join(
            dict.fromkeys(
                cell.result.selected_on for cell in done if cell.result and cell.result.selected_on
            )
        ),
        seeds=sorted({seed for cell in done if cell.result for seed in cell.result.seeds}),
        date=max(cell.date for cell in done),
        **common_fields(recipe, path, changes, table.environments[done[-1].environment]),
    )


def table_recipe(table: TableFile, cell: Cell) -> tuple[Recipe, Path, list[str]]:
    """The recipe of a cell; the file and the changes of the whole table."""
    plan = find_plan(table.table)
    row_plan = next(row_plan for row_plan in plan.rows if cell.row.endswith(row_plan.row))
    recipe = build(Recipe, table.recipes[cell.recipe], "table.json")

    def read(path: Path, changes: Sequence[str]) -> Recipe:
        return read_table_recipe(plan, path, (*changes, *row_plan.changes))

    return recipe, *match_recipe(recipe, read)


def collect_cell(cell: Cell) -> CellResult:
    return CellResult(
        row=cell.row,
        column=cell.column,
        task=cell.task,
        record={} if cell.result is None else lean_record(cell.result),
        seconds=cell.seconds,
        date=cell.date,
    )


def common_fields(
    recipe: Recipe, path: Path, changes: list[str], environment: dict[str, str]
) -> dict[str, Any]:
    """The fields that runs and tables share."""
    machine = dict(environment)
    return {
        "backbone": names_only(recipe.extract.backbone),
        "preset": recipe.pretrain.preset,
        "label_fraction": recipe.evaluate.label_fraction,
        "recipe_file": f"recipes/{path.name}",
        "recipe_text": path.read_text("utf-8"),
        "recipe": names_only(to_mapping(recipe)),
        "fingerprint": fingerprint(recipe),
        "changes": names_only(changes),
        "commit": machine.pop("commit", "unknown"),
        "clipset": machine.pop("clipset", "unknown"),
        "machine": machine,
    }


def names_only(value: Any) -> Any:
    """The same with absolute paths reduced to their last name."""
    if isinstance(value, dict):
        return {name: names_only(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [names_only(inner) for inner in value]
    if not isinstance(value, str):
        return value
    name, equals, path = value.partition("=")
    path = (path if equals else value).strip('"')
    if not PurePath(path).is_absolute():
        return value
    return f"{name}={PurePath(path).name}" if equals else PurePath(path).name


def compare_runs(run: int, baseline: int, folders: Sequence[Path]) -> list[RunDifference]:
    """Paired differences of the probes that depend on the model, for all tasks of two runs."""
    first, second = (
        {task_name(path, folders[index]): path for path in task_folders(folders[index])}
        for index in (run, baseline)
    )
    return [
        replace(difference, run=run, baseline=baseline, task=name)
        for name, path in first.items()
        if name in second
        for difference in compare_task(path, second[name])
    ]


def compare_task(first: Path, second: Path) -> list[RunDifference]:
    """The same for one task; nothing if other videos were evaluated."""
    ours, theirs = (read_predictions(path / "predictions.safetensors") for path in (first, second))
    if ours.ids != theirs.ids:
        return []
    differences = []
    for key in MODEL_ROWS:
        if key in ours.outputs and key in theirs.outputs:
            test = compare_values(ours.values(key), theirs.values(key), ours.groups)
            differences.append(
                RunDifference(
                    features=key.features,
                    probe=key.probe,
                    metric=ours.metric,
                    difference=test.difference,
                    interval=test.interval,
                    p=test.p,
                    n=len(ours.ids),
                )
            )
    return differences


def main() -> None:
    """Collect the runs of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--name", required=True, help="the file's name, without .json")
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER")
    options = parser.parse_args()
    try:
        print(f"→ {collect(options.folders, options.name, options.out)}")
    except ClipsetError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
