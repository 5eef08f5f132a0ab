"""`clipset catalog`, `clipset catalog check`: list videos with labels and splits; check them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from clipset.cli import flags
from clipset.cli.app import VerbApp, app, show_result
from clipset.errors import CatalogError
from clipset.text import counted

USAGE = """clipset catalog [OPTIONS] VIDEOS
       clipset catalog check [OPTIONS] VIDEOS"""
catalog_app = VerbApp(name="catalog", help_format="plaintext", usage=USAGE)
app.command(catalog_app)


@catalog_app.default
def catalog_command(
    videos: Path,
    /,
    *,
    out: Path = Path("catalog.csv"),
    test_fraction: float = 0.25,
    dataset: Literal["ucf101", "hmdb51", "kinetics", "ssv2", "lvu"] | None = None,
    lists: Path | None = None,
    fold: flags.Int = 1,
    task: str | None = None,
    keep: float | None = None,
    force: Annotated[bool, flags.SWITCH] = False,
    common: flags.Seeded = flags.SEEDED,
) -> None:
    """List videos with labels and splits in a .csv file, to edit and to use in other commands.

    Example: clipset catalog ~/videos --out catalog.csv

    Example: clipset catalog UCF-101 --dataset ucf101 \\
        --lists ucfTrainTestlist --fold 1

    Args:
        videos: A folder (sub-folders are labels) or another catalog.
        out: The file to write.
        test_fraction: Fraction of the labelled videos used for testing, where no split is given.
        dataset: Read the official lists of this dataset.
        lists: The official lists: a folder, or a .csv file of Kinetics (by default they are
            searched for in the folder VIDEOS).
        fold: Official split of UCF101 or HMDB51.
        task: Task of LVU, such as relationship or view_count.
        keep: Keep only this fraction of the training videos of each class (low-shot).
        force: Replace the file if it exists; by default, a file that differs is refused.
    """
    from clipset.data.catalog import describe_catalog, encode_catalog, read_catalog, write_catalog
    from clipset.data.datasets import LVU_TASKS, read_dataset
    from clipset.data.leaks import describe_leaks
    from clipset.data.splits import assign_splits, keep_fraction
    from clipset.files import check_output

    if out.suffix.lower() not in ("", ".csv"):
        raise CatalogError(f"a catalog is written as .csv, got {out}; use another name")
    check_output(out, "file")
    if dataset:
        if dataset == "lvu" and task not in LVU_TASKS:
            task_names = ", ".join(LVU_TASKS)
            raise CatalogError(f"LVU has several tasks; choose one with --task: {task_names}")
        task_name = task if dataset == "lvu" and task else f"split-{fold}"
        [listed] = read_dataset(dataset, videos, lists, task_name).values()
    else:
        if lists is not None or fold != 1 or task is not None:
            raise CatalogError("--lists, --fold and --task are those of a dataset; add --dataset")
        seed = common.random_seed
        listed = assign_splits(read_catalog(videos), test_fraction=test_fraction, seed=seed)
    if keep is not None:
        listed = keep_fraction(listed, keep)
    leaks = describe_leaks([listed])
    if not force and out.is_file() and out.read_bytes() != encode_catalog(listed):
        raise CatalogError(f"{out} exists and differs; use another name, or --force to replace it")
    write_catalog(listed, out)
    result = {
        "catalog": out,
        "videos": len(listed),
        "classes": listed.classes,
        "splits": {split: len(listed.split(split)) for split in listed.splits},
        "leaks": leaks,
    }
    lines = [f"leak: {leak}" for leak in leaks]
    show_result(result, common, [*lines, f"{describe_catalog(listed)} → {out}"])


@catalog_app.command(name="check")
def catalog_check_command(videos: Path, /, *, common: flags.Common = flags.COMMON) -> None:
    """Check that every file can be read, before hours are spent. Exits with 1 if one cannot.

    Also reports splits that share files or groups, with the same exit code.

    Example: clipset catalog check catalog.csv

    Args:
        videos: A folder or a catalog.
    """
    from clipset.data.catalog import find_missing, read_catalog
    from clipset.data.leaks import describe_leaks
    from clipset.decoding.reader import find_problem
    from clipset.progress import bar

    listed = read_catalog(videos)
    leaks = describe_leaks([listed])
    problems = {}
    with bar("checking", len(listed), "videos") as advance:
        for video in listed:
            if problem := find_problem(video.path, end=video.end):
                problems[video.id] = problem
            advance()
    missing, split_lines = find_missing(listed)
    result = {"videos": len(listed), "problems": problems, "missing": missing, "leaks": leaks}
    lines = [f"{video_id}: {reason}" for video_id, reason in problems.items()]
    lines += [*split_lines, *(f"leak: {leak}" for leak in leaks)]
    lines.append(f"{counted(len(listed), 'video')}, {len(problems)} with problems")
    show_result(result, common, lines)
    if problems or leaks:
        raise SystemExit(1)
