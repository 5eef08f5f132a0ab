"""`reproduce`: a whole table of the paper."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.cli.app import COMMON, Common, app, print_line, show_result


@app.command
def reproduce(
    table: str | None = None,
    *,
    out: Path | None = None,
    data: Path | None = None,
    store: Path | None = None,
    backbone: Annotated[tuple[str, ...], Parameter(name="--backbone", negative="")] = (),
    recipe: Path | None = None,
    seeds: int | None = None,
    set: Annotated[tuple[str, ...], Parameter(name="--set", negative="")] = (),
    list: Annotated[bool, Parameter(name="--list", negative="")] = False,
    render: Annotated[bool, Parameter(negative="")] = False,
    allow_leaks: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Run a table of the paper and print ours next to the paper's. Run again, it goes on.

    Writes table.json, and from it table.txt, table.md, table.tex and table.html. A cell that fails
    is recorded with its reason, and the others are run.

    Example: clipset reproduce --list

    Example: clipset reproduce ucf101 --data UCF101 --out tables/ucf101 --backbone svt_vitb16

    Example: clipset reproduce ablation-masking --store runs/first/store --out tables/masking

    Parameters
    ----------
    table
        The table: ucf101, hmdb51, ssv2, k400, k400-low-shot, lvu, ablation-losses, …
    out
        The table's folder.
    data
        The dataset's folder, with its official lists (for ablations: any videos).
    store
        A finished store instead; every cell uses it.
    backbone
        Only this backbone, also one that the paper does not have; may be repeated.
    recipe
        A TOML file instead of the table's own recipe.
    seeds
        How often each trained probe is repeated.
    set
        One setting, such as `--set pretrain.epochs=100`; may be repeated.
    list
        Say which tables there are.
    render
        Only write the table again from what was run before.
    allow_leaks
        Go on where splits share a file or a group; what they share is said.
    """
    from clipset.errors import ConfigError

    if list or table is None:
        _show_tables(common)
        return
    if out is None:
        raise ConfigError("say where the table goes: --out DIR")
    from clipset.reproduce.plan import find_plan
    from clipset.reproduce.render import render_text, write_renderings
    from clipset.reproduce.run import ReproduceRequest, reproduce
    from clipset.reproduce.table import read_table_file

    find_plan(table)
    if render:
        found = read_table_file(out)
        write_renderings(found, out)
    else:
        changes = (*set, *([f"evaluate.num_seeds={seeds}"] if seeds is not None else []))
        request = ReproduceRequest(
            data=data, store=store, backbones=backbone, recipe=recipe, changes=changes,
            seed=common.seed, device=common.device, allow_leaks=allow_leaks,
        )  # fmt: skip
        found = reproduce(table, out, request)

    def show() -> None:
        for line in render_text(found).split("\n"):
            print_line(line)
        print_line(f"page: {out / 'table.html'}")

    show_result(found, common, show)


def _show_tables(common: Common) -> None:
    from clipset.reproduce.paper import TABLES

    rows = [
        {"table": name, "number": table.number, "title": table.title, "cells": len(table.cells)}
        for name, table in TABLES.items()
    ]

    def show() -> None:
        for row in rows:
            print_line(f"{row['table']:22} table {row['number']:>2}: {row['title']}")

    show_result({"tables": rows}, common, show)
