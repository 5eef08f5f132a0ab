"""Write docs/results.md from the files beside this script: *.json, studies/*.json and *.md.

python results/write.py          # writes the page
python results/write.py --check  # fails if the page is not up to date
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from records import (
    HERE,
    AblationStudy,
    Result,
    ResultFile,
    TaskResult,
    read_result_files,
    read_studies,
)
from tables import (
    ablation,
    ablation_table,
    differences,
    label_text,
    labels,
    origin,
    run_differences,
    scores,
    seed_effect,
    study_origin,
    study_rows,
    validation_table,
    variants,
    wrap,
)

from clipset.files import write_atomic

PAGE = HERE.parent / "docs" / "results.md"
HEAD = HERE / "head.md"
ABLATION_TEXT = HERE / "ablations.md"
FINAL_TEXT = HERE / "final.md"
RERUN = HERE / "rerun.md"
EMPTY = "No run has been collected yet.\n"
ABLATIONS = (
    "ablation-losses",
    "ablation-masking",
    "ablation-capacity",
    "ablation-clips-batch",
)
Group = tuple[str, str]


def render(
    files: Sequence[ResultFile], notes: Sequence[str] = (), studies: Sequence[AblationStudy] = ()
) -> str:
    """The whole page."""
    runs = [result for file in files for result in file.results if result.kind == "run"]
    tested = [run for run in runs if run.split == "test"]
    lines = [HEAD.read_text("utf-8"), *(note.strip() + "\n" for note in notes)]
    lines += final_results([study for study in studies if not study.folds])
    single = [run for run in tested if len(run.tasks) == 1]
    for group in groups(single):
        lines += dataset(group, [run for run in single if group_key(run) == group], files)
    several = [run for run in tested if len(run.tasks) > 1]
    for group in groups(several):
        lines += tasks(group, [run for run in several if group_key(run) == group], files)
    lines += ablations([result for file in files for result in file.results])
    others = [run for run in runs if run.split != "test"]
    if others:
        lines += ["## Validation results", ""]
        lines += ["Settings were chosen by these runs. They use no test video.", ""]
        lines += validation_table(others)
        for run in others:
            lines += origin(run, f"{run.dataset}, {run.variant}")
    lines += study_tables([study for study in studies if study.folds])
    lines += [EMPTY] if not any(file.results for file in files) else []
    lines += [RERUN.read_text("utf-8")]
    return "\n".join(lines).rstrip() + "\n"


def group_key(result: Result) -> Group:
    """Data and backbone: what a section is about."""
    return result.dataset, result.backbone


def groups(results: Sequence[Result]) -> list[Group]:
    """The sections, the largest data first."""
    sizes: dict[Group, int] = {}
    for result in results:
        size = result.tasks[0].counts["videos"]
        sizes[group_key(result)] = max(size, sizes.get(group_key(result), 0))
    return sorted(sizes, key=lambda group: (-sizes[group], group))


def dataset(group: Group, runs: Sequence[Result], files: Sequence[ResultFile]) -> list[str]:
    """The tables of one dataset with one backbone."""
    selected = main_runs(runs)
    columns = [(labels(run), run.tasks[0]) for run in selected]
    lines = [f"## {group[0]}, {group[1]}", "", describe_data(selected[0].tasks[0]), ""]
    lines += [describe_protocol(selected[0].tasks[0]), f"Trained as `{selected[0].variant}`.", ""]
    lines += scores(columns) + differences(columns)
    for run in selected:
        lines += origin(run, labels(run))
    full = [run for run in runs if run.label_fraction is None]
    if len(full) > 1:
        lines += ["### Trainings side by side", ""]
        lines += variants(full)
        for run in full:
            lines += origin(run, run.variant)
    for file in files:
        lines += run_differences(file, runs)
    return lines


def main_runs(runs: Sequence[Result]) -> list[Result]:
    """The recommended training (or the first one): with all labels, then with fewer."""
    order = ("recommended", "paper", "official")
    ranked = sorted(runs, key=lambda run: (order.index(run.preset), len(run.changes)))
    variant = ranked[0].variant
    same = [run for run in ranked if run.variant == variant]
    by_fraction = {run.label_fraction: run for run in reversed(same)}
    return sorted(by_fraction.values(), key=lambda run: -(run.label_fraction or 1.0))


def describe_data(task: TaskResult) -> str:
    """Videos, classes and splits in one line."""
    counts = dict(task.counts)
    videos, classes = counts.pop("videos"), counts.pop("classes")
    failed = counts.pop("failed", 0)
    splits = ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))
    size = f"{videos:,} videos" + (f", {classes} classes" if classes else ", a number for each")
    lost = f"; {failed} could not be read" if failed else ""
    return f"{size}; {splits}{lost}; scored on {task.split}."


def describe_protocol(task: TaskResult) -> str:
    """Chance level and validation videos."""
    level = next(
        (row["chance_level"] for row in task.rows if row.get("chance_level") is not None), None
    )
    selected = dict.fromkeys(row["selected_on"] for row in task.rows if row["selected_on"])
    validation = f"Validation on {'; '.join(selected)}." if selected else ""
    if level is None or task.rows[0]["metric"] == "mse":
        return validation
    return f"Chance level {100 * level:.1f} %. {validation}"


def tasks(group: Group, runs: Sequence[Result], files: Sequence[ResultFile]) -> list[str]:
    """A run with several tasks or splits: a column for each."""
    lines = [f"## {group[0]}, {group[1]}", ""]
    for run in runs:
        columns = [(_titled(task), task) for task in run.tasks]
        lines += [f"Trained as `{run.variant}`, {labels(run)}.", ""]
        lines += [
            wrap(f"- {task.name}: {describe_data(task)} {describe_protocol(task)}", indent=2)
            for task in run.tasks
        ]
        lines += ["", *scores(columns), *differences(columns), *origin(run)]
    if any(row["metric"] == "mse" for run in runs for task in run.tasks for row in task.rows):
        lines += ["Lower squared errors are better: a negative difference is a gain.", ""]
    for file in files:
        lines += run_differences(file, runs)
    return lines


def _titled(task: TaskResult) -> str:
    metric = str(task.rows[0]["metric"])
    return f"{task.name} (squared error)" if metric == "mse" else task.name


def ablations(results: Sequence[Result]) -> list[str]:
    """The paper's ablations on our data."""
    found = [result for name in ABLATIONS for result in results if result.table == name]
    others = [result for result in results if result.kind == "table" and result not in found]
    lines: list[str] = []
    for result in (*found, *others):
        heading = f"### {result.title.removeprefix('Ablation: ').capitalize()}: {result.dataset}"
        lines += [heading, "", f"Scored on {result.split}.", ""]
        lines += ablation(result) + origin(result)
    if not lines:
        return []
    return ["## Tables of the paper on our data", "", *lines]


def final_results(studies: Sequence[AblationStudy]) -> list[str]:
    """Recipes on test videos, each trained several times."""
    if not studies:
        return []
    lines = ["## Final test results", "", FINAL_TEXT.read_text("utf-8")]
    for study in studies:
        fraction = label_text(study.recipe["evaluate"]["label_fraction"])
        lines += [f"### {study.dataset}, {study.backbone}, {fraction}", ""]
        lines += [wrap(f"{study.videos:,} test videos. {seed_effect(study)}"), ""]
        lines += study_rows(study) + ablation_table(study) + study_origin(study)
    return lines


def study_tables(studies: Sequence[AblationStudy]) -> list[str]:
    """The ablations of each recipe."""
    if not studies:
        return []
    lines = ["## Ablations: one change at a time", "", ABLATION_TEXT.read_text("utf-8")]
    for study in studies:
        lines += [f"### {study.dataset}, {study.backbone}", ""]
        lines += [
            wrap(
                f"{study.videos:,} training videos, each scored in one of {study.folds} folds. "
                + seed_effect(study)
            ),
            "",
        ]
        lines += ablation_table(study) + study_origin(study)
    return lines


def read_notes(folder: Path = HERE) -> list[str]:
    """The notes, in the order of their file names."""
    return [path.read_text("utf-8") for path in sorted((folder / "notes").glob("*.md"))]


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    parser.add_argument("--results", type=Path, default=HERE, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args()
    files, studies = read_result_files(options.results), read_studies(options.results)
    text = render(files, read_notes(options.results), studies)
    if options.check:
        old = options.out.read_text("utf-8") if options.out.is_file() else ""
        sys.exit(
            f"{options.out.name} is not up to date; run results/write.py" if old != text else 0
        )
    write_atomic(options.out, text.encode())
    print(f"→ {options.out}")


if __name__ == "__main__":
    main()
