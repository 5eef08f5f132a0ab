"""`catalog`, `catalog check`: which videos there are."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from cyclopts import App

from clipset.cli.app import COMMON, Common, app, print_line, show_result

catalog_app = App(name="catalog", help_format="plaintext")
app.command(catalog_app)


@catalog_app.default
def catalog(
    videos: Path,
    *,
    out: Path = Path("catalog.csv"),
    test_fraction: float = 0.25,
    dataset: Literal["ucf101", "hmdb51", "kinetics", "ssv2", "lvu"] | None = None,
    lists: Path | None = None,
    fold: int = 1,
    task: str | None = None,
    keep: float | None = None,
    common: Common = COMMON,
) -> None:
    """List videos with their labels and splits in a .csv that every verb takes and you may edit.

    Example: clipset catalog ~/videos --out catalog.csv

    Example: clipset catalog UCF-101 --dataset ucf101 --lists ucfTrainTestlist --fold 1

    Parameters
    ----------
    videos
        A folder (sub-folders are labels) or another catalog.
    out
        The file to write.
    test_fraction
        Share of the labelled videos set aside for the test, where nothing says which.
    dataset
        The folder holds this dataset; its official lists say what is in it.
    lists
        Where the official lists are (for Kinetics, one of the .csv files or their folder).
    fold
        Which of the official splits of UCF101 or HMDB51.
    task
        Which task of LVU, such as relationship or view_count.
    keep
        Keep only this share of the training videos of each class (low-shot).
    """
    from clipset.config import check_output
    from clipset.data.catalog import describe, read_catalog, write_catalog
    from clipset.data.datasets import read_dataset
    from clipset.data.leaks import describe_leaks
    from clipset.data.splits import assign_splits, keep_fraction

    check_output(out, "file")
    if dataset:
        found = read_dataset(dataset, videos, lists, fold=fold, task=task)
    else:
        found = assign_splits(read_catalog(videos), test_fraction=test_fraction, seed=common.seed)
    if keep is not None:
        found = keep_fraction(found, keep)
    leaks = describe_leaks([found])
    write_catalog(found, out)
    result = {
        "catalog": out,
        "videos": len(found),
        "classes": found.classes,
        "splits": {name: len(found.split(name)) for name in found.splits},
        "leaks": leaks,
    }

    def show() -> None:
        for leak in leaks:
            print_line(f"leak: {leak}")
        print_line(f"{describe(found)} → {out}")

    show_result(result, common, show)


@catalog_app.command
def check(videos: Path, *, common: Common = COMMON) -> None:
    """Read every file's packets and say what is wrong, before hours are spent. Exits with 1 if so.

    Splits that share a file or a group are wrong, too.

    Example: clipset catalog check catalog.csv

    Parameters
    ----------
    videos
        A folder or a catalog.
    """
    from clipset.data.catalog import read_catalog
    from clipset.data.check import check_catalog, find_coverage
    from clipset.data.leaks import describe_leaks
    from clipset.progress import bar

    found = read_catalog(videos)
    leaks = describe_leaks([found])
    with bar("checking", len(found), "videos") as advance:
        problems = check_catalog(found, lambda _: advance())
    coverage = find_coverage(found)
    result = {
        "videos": len(found),
        "problems": dict(problems),
        "missing": coverage.missing,
        "leaks": leaks,
    }

    def show() -> None:
        for video, problem in problems:
            print_line(f"{video}: {problem}")
        for line in coverage.lines:
            print_line(line)
        for leak in leaks:
            print_line(f"leak: {leak}")
        print_line(f"{len(found)} videos, {len(problems)} with problems")

    show_result(result, common, show)
    if problems or leaks:
        raise SystemExit(1)
