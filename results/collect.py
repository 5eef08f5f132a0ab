"""Finished runs, or folders of `clipset reproduce`, into one file that results/write.py reads.

    python results/collect.py runs/lsa64 runs/lsa64_low_shot runs/lsa64_paper --name lsa64_lite0

Runs of one file are compared: of those with the same data, backbone and share of labels, the first
with each other one.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path, PurePath
from typing import Any

import numpy as np
from recipes import as_words, find_recipe
from records import HERE, Between, CellResult, PartResult, Result, ResultFile, write_result_file

from clipset.config import build, fingerprint, read_json, to_mapping
from clipset.data.catalog import read_catalog_table
from clipset.errors import ClipsetError, RunError
from clipset.evaluation.results import ProbeKey, ProbeResult, read_predictions
from clipset.evaluation.statistics import compare_values
from clipset.features.store import FeatureStore
from clipset.pipeline import read_results
from clipset.recipe import Recipe, read_recipe
from clipset.reproduce.plan import find_plan, read_table_recipe
from clipset.reproduce.table import TABLE_FILE, Cell, TableFile, read_table_file
from clipset.runs import read_run

LEFT_OUT = ("per_class", "confusion")
MODEL_ROWS = (
    ProbeKey("scale", "knn"), ProbeKey("scale", "linear"), ProbeKey("scale", "finetune"),
)  # fmt: skip
SEED = 0  # of the bootstrap between runs


def collect(folders: Sequence[Path], name: str, out: Path = HERE) -> Path:
    """Write `NAME.json` from finished runs and tables."""
    results = [collect_one(folder) for folder in folders]
    first: dict[tuple[str, str, float | None], int] = {}
    between: list[Between] = []
    for place, result in enumerate(results):
        if result.kind == "run":
            before = first.setdefault((result.dataset, result.backbone, result.low_shot), place)
            between += compare_runs(before, place, folders) if before != place else []
    return write_result_file(ResultFile(name=name, results=results, between=between), out)


def collect_one(folder: Path) -> Result:
    """A finished run or table."""
    return collect_table(folder) if (folder / TABLE_FILE).is_file() else collect_run(folder)


def collect_run(folder: Path) -> Result:
    """What a run's folder says, in one value."""
    run = read_run(folder)
    if not run.get("steps") or run["steps"][-1]["name"] != "report" or not read_results(folder):
        raise RunError(f"{folder} is not a finished run with scores; run `clipset run` to its end")
    recipe = build(Recipe, run["recipe"], str(folder / "run.json"))
    path, changes = find_recipe(recipe, read_recipe)
    parts = [collect_part(each, folder) for each in part_folders(folder)]
    seed = f" --seed {run['seed']}" if run["seed"] else ""
    source = str(run.get("source") or run["name"])
    words = f"clipset run {source} --recipe recipes/{path.name} --out runs/{folder.resolve().name}"
    rows = [row for part in parts for row in part.rows]
    return Result(
        kind="run",
        dataset=str(run["name"]),
        source=source,
        parts=parts,
        command=f"{words}{as_words(names_only(changes))}{seed}",
        validation="; ".join(dict.fromkeys(row["selected_on"] for row in rows)),
        seeds=sorted({seed for row in rows for seed in row["seeds"]}),
        date=str(run["started"]),
        **about(recipe, path, changes, run["environment"]),
    )


def part_folders(folder: Path) -> list[Path]:
    """The folders of a run's parts, or the run itself where it has none."""
    steps = [str(step["name"]) for step in read_run(folder)["steps"]]
    return [folder / name for name in steps if (folder / name / "results.json").is_file()] or [
        folder
    ]


def part_name(folder: Path, run: Path) -> str:
    """What a part is called; a run without parts has one without a name."""
    return "" if folder == run else folder.name


def collect_part(folder: Path, run: Path) -> PartResult:
    """One problem of a run."""
    catalog = read_catalog_table(folder / "catalog.csv")
    splits = Counter(video.split or "none" for video in catalog)
    counts = {"videos": len(catalog), "classes": len(catalog.classes), **splits}
    if (run / "store" / "ledger.sqlite").is_file():
        counts["failed"] = len(FeatureStore(run / "store", catalog).failed)
    rows = [lean_record(result) for result in read_results(folder)]
    return PartResult(
        name=part_name(folder, run),
        counts=counts,
        split=str(rows[0]["split"]),
        rows=rows,
        comparisons=read_json(folder / "comparisons.json"),
        training_seconds=training_seconds(folder / "model" / "metrics.jsonl"),
    )


def lean_record(result: ProbeResult) -> dict[str, Any]:
    """A result without its matrices."""
    record: dict[str, Any] = to_mapping(result)
    return {name: value for name, value in record.items() if name not in LEFT_OUT}


def training_seconds(metrics: Path) -> float | None:
    """The seconds of all epochs of pre-training."""
    if not metrics.is_file():
        return None
    lines = [json.loads(line) for line in metrics.read_text("utf-8").splitlines() if line]
    return float(sum(line["seconds"] for line in lines))


def collect_table(folder: Path) -> Result:
    """What a folder of `clipset reproduce` says, in one value."""
    table = read_table_file(folder)
    done = [cell for cell in table.cells if cell.status == "done"]
    missing = [cell.row for cell in table.cells if cell.status == "failed"]
    if missing or not done:
        raise RunError(f"{folder} lacks {missing[0] if missing else 'all rows'}; run it to its end")
    recipe, path, changes = recipe_of(table, done[-1])
    words = f"clipset reproduce {table.table} --store {table.data} --recipe recipes/{path.name}"
    return Result(
        kind="table",
        dataset=done[-1].column.rpartition(", ")[0] or table.data,
        source=table.data,
        table=table.table,
        title=table.title,
        table_rows=[row for row in table.rows if row not in table.quoted],
        cells=[as_result(cell) for cell in done],
        paper=table.paper,
        command=f"{words} --out tables/{table.table}{as_words(names_only(changes))}",
        validation="; ".join(
            dict.fromkeys(str(cell.result.selected_on) for cell in done if cell.result)
        ),
        seeds=sorted({seed for cell in done if cell.result for seed in cell.result.seeds}),
        date=max(cell.date for cell in done),
        **about(recipe, path, changes, table.environments[done[-1].environment]),
    )


def recipe_of(table: TableFile, cell: Cell) -> tuple[Recipe, Path, list[str]]:
    """The recipe of a cell; the file and the changes that the whole table was run with."""
    plan = find_plan(table.table)
    row_plan = next(row_plan for row_plan in plan.rows if cell.row.endswith(row_plan.row))
    recipe = build(Recipe, table.recipes[cell.recipe], "table.json")

    def read(path: Path, changes: Sequence[str]) -> Recipe:
        return read_table_recipe(plan, path, (*changes, *row_plan.changes))

    return recipe, *find_recipe(recipe, read)


def as_result(cell: Cell) -> CellResult:
    return CellResult(
        row=cell.row,
        column=cell.column,
        part=cell.task,
        record={} if cell.result is None else lean_record(cell.result),
        seconds=cell.seconds,
        date=cell.date,
    )


def about(
    recipe: Recipe, path: Path, changes: list[str], environment: dict[str, str]
) -> dict[str, Any]:
    """What runs and tables have in common."""
    machine = dict(environment)
    return {
        "backbone": names_only(recipe.extract.backbone),
        "preset": recipe.pretrain.preset,
        "low_shot": recipe.evaluate.label_fraction,
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
    """The same without folders of this machine: of an absolute path the last name stays."""
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


def compare_runs(one: int, two: int, folders: Sequence[Path]) -> list[Between]:
    """The rows that depend on the model: one run minus another, video by video."""
    first, second = (
        {part_name(part, folders[place]): part for part in part_folders(folders[place])}
        for place in (one, two)
    )
    return [
        each
        for name, part in first.items()
        if name in second
        for each in compare_part(one, two, name, part, second[name])
    ]


def compare_part(one: int, two: int, part: str, first: Path, second: Path) -> list[Between]:
    """The same for one part; nothing if other videos were judged."""
    ours, theirs = (read_predictions(each / "predictions.safetensors") for each in (first, second))
    if ours.ids != theirs.ids:
        return []
    found = []
    for row in MODEL_ROWS:
        if row in ours.outputs and row in theirs.outputs:
            values = ours.values(row), theirs.values(row)
            difference = compare_values(*values, np.random.default_rng(SEED))
            found.append(
                Between(
                    of=one,
                    against=two,
                    part=part,
                    features=row.features,
                    probe=row.probe,
                    metric="top1" if ours.classes else "mse",
                    difference=difference.difference,
                    interval=difference.interval,
                    p=difference.p,
                    n=len(ours.ids),
                )
            )
    return found


def main() -> None:
    """Collect what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("folders", nargs="+", type=Path, metavar="RUN")
    parser.add_argument("--name", required=True, help="the file's name, without .json")
    parser.add_argument("--out", type=Path, default=HERE, metavar="FOLDER")
    given = parser.parse_args()
    try:
        print(f"→ {collect(given.folders, given.name, given.out)}")
    except ClipsetError as error:
        parser.error(str(error))


if __name__ == "__main__":
    main()
