"""`clipset reproduce`: the tables of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.cli import flags
from clipset.cli.app import app, show_result

USAGE = """clipset reproduce --out PATH [OPTIONS] TABLE
       clipset reproduce --list"""


@app.command(name="reproduce", usage=USAGE)
def reproduce_command(
    table: str | None = None,
    /,
    *,
    out: Path | None = None,
    data: Path | None = None,
    store: Path | None = None,
    backbone: Annotated[tuple[str, ...], Parameter(metavar="STR"), flags.SWITCH] = (),
    recipe: Path | None = None,
    set: flags.Changes = (),
    list: Annotated[flags.Switch, Parameter(name="--list")] = False,
    render: flags.Switch = False,
    allow_leaks: flags.AllowLeaks = False,
    common: flags.Training = flags.TRAINING,
) -> None:
    """Run a table of the paper and print our numbers beside the paper's. Run again, it resumes.

    Writes table.json, table.txt, table.md, table.tex and table.html. A cell is one number of the
    table, such as the accuracy of one probe with one backbone. Cells are run one after another. If
    one fails, the table records the reason, and the others are run.

    Example: clipset reproduce --list

    Example: clipset reproduce resources --out tables/resources

    Example: clipset reproduce ucf101 --data UCF101 --out tables/ucf101 \\
        --backbone svt_vitb16

    Example: clipset reproduce ablation-masking --store runs/first/store \\
        --out tables/masking

    Args:
        table: The table: resources, ucf101, hmdb51, ssv2, k400, k400-low-shot, lvu,
            ablation-losses, ablation-masking, ablation-capacity or ablation-clips-batch.
        out: The table's folder.
        data: The dataset's folder, with its official lists (for ablations: any videos).
        store: A feature store for all cells, in place of --data.
        backbone: Run only this backbone (any, not only the paper's); repeat the flag for more.
        recipe: A TOML file instead of the table's recipe.
        list: List the tables.
        render: Run nothing; write the files of the table again from the cells that are finished.
    """
    from clipset.errors import ConfigError
    from clipset.reproduce.paper import TABLES

    if list or table is None:
        result = [
            {"table": name, "number": table.number, "title": table.title, "cells": len(table.cells)}
            for name, table in TABLES.items()
        ]
        lines = [f"{row['table']:22} table {row['number']:>2}: {row['title']}" for row in result]
        show_result({"tables": result}, common, lines)
        return
    from clipset.reproduce.plan import RESOURCES, find_plan
    from clipset.reproduce.render import render_text, write_renderings
    from clipset.reproduce.run import ReproduceRequest, reproduce
    from clipset.reproduce.table import read_table_file

    if table != RESOURCES:
        find_plan(table)
    if out is None:
        raise ConfigError("the folder of the table is missing: give --out DIR")
    if render:
        table_file = read_table_file(out)
        write_renderings(table_file, out)
    elif table == RESOURCES:
        from clipset.reproduce.resources import measure_resources

        table_file = measure_resources(out, device=common.device, changes=set)
    else:
        request = ReproduceRequest(
            data=data, store=store, backbones=backbone, recipe=recipe, changes=set,
            seed=common.random_seed, device=common.device, allow_leaks=allow_leaks,
        )  # fmt: skip
        table_file = reproduce(table, out, request)
    lines = [*render_text(table_file).split("\n"), f"page: {out / 'table.html'}"]
    show_result(table_file, common, lines)
