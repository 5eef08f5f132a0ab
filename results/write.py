"""Write docs/results.md from what lies beside this script: *.json, studies, notes and other texts.

python results/write.py          # writes the page
python results/write.py --check  # fails if the page is not what would be written
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from records import HERE, PartResult, Result, ResultFile, Study, read_result_files, read_studies
from tables import (
    ablation,
    between,
    claims,
    ideas,
    labels,
    origin,
    scores,
    seed_effect,
    share_of_labels,
    study_origin,
    study_rows,
    tried,
    variants,
    wrap,
)

from clipset.config import write_atomic

PAGE = HERE.parent / "docs" / "results.md"
HEAD = HERE / "head.md"
IDEAS = HERE / "ideas.md"
RERUN = HERE / "rerun.md"
TRAININGS = HERE / "trainings.md"
EMPTY = "No run has been collected yet.\n"
ABLATIONS = (
    "ablation-losses",
    "ablation-masking",
    "ablation-capacity",
    "ablation-clips-batch",
)
Group = tuple[str, str]


def render(
    files: Sequence[ResultFile], notes: Sequence[str] = (), studies: Sequence[Study] = ()
) -> str:
    """The whole page."""
    runs = [result for file in files for result in file.results if result.kind == "run"]
    tested = [run for run in runs if run.split == "test"]
    lines = [HEAD.read_text("utf-8"), *(note.strip() + "\n" for note in notes)]
    lines += final_tests([study for study in studies if not study.folds])
    single = [run for run in tested if len(run.parts) == 1]
    for group in groups(single):
        lines += dataset(group, [run for run in single if group_of(run) == group], files)
    several = [run for run in tested if len(run.parts) > 1]
    for group in groups(several):
        lines += tasks(group, [run for run in several if group_of(run) == group], files)
    lines += ablations([result for file in files for result in file.results])
    others = [run for run in runs if run.split != "test"]
    if others:
        lines += ["## Tried on validation videos", ""]
        lines += ["Settings were chosen by these runs. They use no test video.", ""]
        lines += tried(others)
        for run in others:
            lines += origin(run, f"{run.dataset}, {run.variant}")
    lines += tried_ideas([study for study in studies if study.folds])
    lines += [EMPTY] if not any(file.results for file in files) else []
    lines += [RERUN.read_text("utf-8")]
    return "\n".join(lines).rstrip() + "\n"


def group_of(result: Result) -> Group:
    """Data and backbone: what a section is about."""
    return result.dataset, result.backbone


def groups(results: Sequence[Result]) -> list[Group]:
    """The sections, the largest data first."""
    sizes: dict[Group, int] = {}
    for result in results:
        size = result.parts[0].counts["videos"]
        sizes[group_of(result)] = max(size, sizes.get(group_of(result), 0))
    return sorted(sizes, key=lambda group: (-sizes[group], group))


def dataset(group: Group, runs: Sequence[Result], files: Sequence[ResultFile]) -> list[str]:
    """The tables of one dataset seen through one backbone."""
    chosen = best_documented(runs)
    columns = [(labels(run), run.parts[0]) for run in chosen]
    lines = [f"## {group[0]}, {group[1]}", "", about(chosen[0].parts[0]), ""]
    lines += [chance_level(chosen[0].parts[0]), f"Trained as `{chosen[0].variant}`.", ""]
    lines += scores(columns) + claims(columns)
    for run in chosen:
        lines += origin(run, labels(run))
    full = [run for run in runs if run.low_shot is None]
    if len(full) > 1:
        lines += ["### Trainings side by side", ""]
        lines += variants(full)
        for run in full:
            lines += origin(run, run.variant)
    for file in files:
        lines += between(file, runs)
    return lines


def best_documented(runs: Sequence[Result]) -> list[Result]:
    """The recommended training (or the first one): with all labels, then with fewer."""
    order = ("recommended", "paper", "official")
    ranked = sorted(runs, key=lambda run: (order.index(run.preset), len(run.changes)))
    variant = ranked[0].variant
    same = [run for run in ranked if run.variant == variant]
    by_share = {run.low_shot: run for run in reversed(same)}
    return sorted(by_share.values(), key=lambda run: -(run.low_shot or 1.0))


def about(part: PartResult) -> str:
    """What the data is, in one line."""
    counts = dict(part.counts)
    videos, classes = counts.pop("videos"), counts.pop("classes")
    failed = counts.pop("failed", 0)
    splits = ", ".join(f"{number:,} {name}" for name, number in sorted(counts.items()))
    what = f"{videos:,} videos" + (f", {classes} classes" if classes else ", a number for each")
    lost = f"; {failed} could not be read" if failed else ""
    return f"{what}; {splits}{lost}; scored on {part.split}."


def chance_level(part: PartResult) -> str:
    """The chance level, and the validation videos."""
    level = next(
        (row["chance_level"] for row in part.rows if row.get("chance_level") is not None), None
    )
    chosen = dict.fromkeys(
        row["selected_on"] for row in part.rows if not row["selected_on"].startswith("nothing")
    )
    validation = f"Validation on {'; '.join(chosen)}." if chosen else ""
    if level is None or part.rows[0]["metric"] == "mse":
        return validation
    return f"Chance level {100 * level:.1f} %. {validation}"


def tasks(group: Group, runs: Sequence[Result], files: Sequence[ResultFile]) -> list[str]:
    """A run with several tasks or splits: a column for each."""
    lines = [f"## {group[0]}, {group[1]}", ""]
    for run in runs:
        columns = [(_titled(part), part) for part in run.parts]
        lines += [f"Trained as `{run.variant}`, {labels(run)}.", ""]
        lines += [
            wrap(f"- {part.name}: {about(part)} {chance_level(part)}", indent=2)
            for part in run.parts
        ]
        lines += ["", *scores(columns), *claims(columns), *origin(run)]
    if any(row["metric"] == "mse" for run in runs for part in run.parts for row in part.rows):
        lines += ["Lower squared errors are better: a negative difference is a gain.", ""]
    for file in files:
        lines += between(file, runs)
    return lines


def _titled(part: PartResult) -> str:
    metric = str(part.rows[0]["metric"])
    return f"{part.name} (squared error)" if metric == "mse" else part.name


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


def final_tests(studies: Sequence[Study]) -> list[str]:
    """Recipes against each other on test videos, each trained several times."""
    if not studies:
        return []
    lines = ["## Final test results", "", TRAININGS.read_text("utf-8")]
    for study in studies:
        seen = share_of_labels(study.recipe["evaluate"]["label_fraction"])
        lines += [f"### {study.dataset}, {study.backbone}, {seen}", ""]
        lines += [wrap(f"{study.videos:,} test videos. {seed_effect(study)}"), ""]
        lines += study_rows(study) + ideas(study) + study_origin(study)
    return lines


def tried_ideas(studies: Sequence[Study]) -> list[str]:
    """What was tried against each recipe."""
    if not studies:
        return []
    lines = ["## Ideas, one change at a time", "", IDEAS.read_text("utf-8")]
    for study in studies:
        lines += [f"### {study.dataset}, {study.backbone}", ""]
        lines += [
            wrap(
                f"{study.videos:,} training videos, each scored in one of {study.folds} folds. "
                + seed_effect(study)
            ),
            "",
        ]
        lines += ideas(study) + study_origin(study)
    return lines


def read_notes(folder: Path = HERE) -> list[str]:
    """The sections that people wrote, in the order of their files' names."""
    return [path.read_text("utf-8") for path in sorted((folder / "notes").glob("*.md"))]


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    parser.add_argument("--results", type=Path, default=HERE, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE")
    given = parser.parse_args()
    files, studies = read_result_files(given.results), read_studies(given.results)
    text = render(files, read_notes(given.results), studies)
    if given.check:
        old = given.out.read_text("utf-8") if given.out.is_file() else ""
        sys.exit(f"{given.out.name} is not up to date; run results/write.py" if old != text else 0)
    write_atomic(given.out, text.encode())
    print(f"→ {given.out}")


if __name__ == "__main__":
    main()
