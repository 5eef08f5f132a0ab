"""Results as a person likes to read them in a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from clipset.cli.app import print_line


def print_summary(summary: Any) -> None:
    if summary.records:
        print_records(summary.records)
    if summary.note:
        print_line(summary.note)
    if summary.failed:
        print_line(f"{summary.failed} videos could not be read; the report lists them")
    print_line("  ".join(f"{name} {seconds:.1f} s" for name, seconds in summary.seconds.items()))
    print_line(f"report: {summary.report}")


def print_records(records: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from clipset.report.wording import row_name

    table = Table("probe", "top-1", "95 % interval", "videos", "seeds", "chosen on")
    for record in records:
        low, high = record["interval"]
        table.add_row(
            row_name(record["features"], record["probe"]),
            f"{record['value']:.1%}",
            f"{low:.1%} – {high:.1%}",
            str(record["n"]),
            str(len(record["seeds"])),
            record["selected_on"],
        )
    Console().print(table)


def print_curves(curves: Sequence[dict[str, Any]]) -> None:
    from rich.console import Console
    from rich.table import Table

    from clipset.report.wording import row_name

    points = curves[0]["points"] if curves else []
    table = Table("labels", *(f"{point['fraction']:.0%}" for point in points))
    table.add_row("videos", *(str(point["videos"]) for point in points))
    for curve in curves:
        scores = (f"{point['value']:.1%}" for point in curve["points"])
        table.add_row(row_name(curve["features"], curve["probe"]), *scores)
    Console().print(table)


def print_backbones(rows: Sequence[Any]) -> None:
    from rich.console import Console
    from rich.table import Column, Table

    from clipset.backbones.registry import weights_folder

    names = ("dim", "frames", "stride", "size", "licence")
    table = Table(Column("name", no_wrap=True), *names, Column("weights", no_wrap=True))
    for row in rows:
        facts = ("–" if getattr(row, name) is None else str(getattr(row, name)) for name in names)
        table.add_row(row.name, *facts, "here" if row.here else "not here")
    Console().print(table)
    for row in rows:
        print_line(f"{row.name}: {row.file + ' from ' if row.file else ''}{row.source}")
    print_line(
        f"Downloaded files go into {weights_folder()} (CLIPSET_WEIGHTS names another folder)."
    )


def print_check(result: Any) -> None:
    spec = result.spec
    print_line(f"{spec.name}: {spec.frames} frames, stride {spec.stride}, {spec.size} pixels")
    weights = f", {result.parameters:,} parameters" if result.parameters else ""
    print_line(f"{result.engine} on {result.device}{weights}")
    print_line(f"loaded in {result.load_seconds:.1f} s, {result.clips_per_second:.1f} clips/s")
    statistics = ("mean", "std", "min", "max", "norm")
    values = "  ".join(f"{name} {getattr(result, name):.4g}" for name in statistics)
    print_line(f"feature of {spec.dim} numbers: {values}  zeros {result.zeros:.1%}")
    if not result.repeatable:
        print_line("the same clip gave another feature the second time: it is no frozen backbone")
