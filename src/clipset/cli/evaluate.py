"""`clipset evaluate`: score features by probes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from clipset.cli.app import SEEDED, Changes, Common, Seeded, Switch, app, show_result
from clipset.cli.tables import print_comparisons, print_curves, print_records
from clipset.probes.config import ProbeName

if TYPE_CHECKING:
    from clipset.evaluation.results import LowShotCurve


@app.command(name="evaluate")
def evaluate_command(
    store: Path,
    /,
    *,
    model: Path | None = None,
    out: Path | None = None,
    catalog: Path | None = None,
    probes: Annotated[tuple[ProbeName, ...] | None, Switch] = None,
    seeds: int | None = None,
    low_shot_curve: Annotated[bool, Switch, Parameter(show_default=False)] = False,
    recipe: Path | None = None,
    set: Changes = (),
    allow_leaks: Annotated[bool, Switch, Parameter(show_default=False)] = False,
    common: Seeded = SEEDED,
) -> None:
    """Score features by probes: k-NN, linear, MLP, transformer, fine-tuning. Needs labels.

    Hyper-parameters are selected on a part of the training videos (or the split `val`), never on
    the test split. Numeric targets are predicted by regression.

    Example: clipset evaluate store --model model --out results.json

    Example: clipset evaluate run/store --model run/model --low-shot-curve --out run/low_shot.json

    Parameters
    ----------
    store
        The store's folder.
    model
        A model's folder or hub name; without one, only the backbone is evaluated.
    out
        A file for the results; comparisons and predictions go beside it.
    catalog
        Labels and splits from this catalog instead of the store's own.
    probes
        Probes to run; may be repeated.
    seeds
        Repetitions of each trained probe.
    low_shot_curve
        Scores with 1, 2, 5, 10, 25, 50 and 100 % of the training labels instead of the table.
    recipe
        A TOML file with a section [evaluate]; flags win over it.
    set
        One setting, such as `--set evaluate.num_seeds=5`; may be repeated.
    allow_leaks
        Continue although splits share files or groups, or --catalog has unknown ids; list them.
    """
    from clipset.config import to_mapping
    from clipset.data.catalog import read_catalog
    from clipset.data.leaks import check_leaks
    from clipset.evaluation.low_shot import run_low_shot
    from clipset.evaluation.suite import run_suite
    from clipset.features.store import open_store
    from clipset.files import check_output
    from clipset.probes.task import make_task
    from clipset.recipe import read_recipe
    from clipset.training.checkpoint import find_model, load_model, read_training

    config = read_recipe(
        recipe, set, {"evaluate.probes": probes, "evaluate.num_seeds": seeds}
    ).evaluate
    if out is not None:
        check_output(out, "file")
    folder = find_model(model) if model else None
    trained, training = (load_model(folder), read_training(folder)) if folder else (None, None)
    labels, opened = read_catalog(catalog) if catalog else None, open_store(store)
    stored_ids = {entry.id for entry in opened.all_entries}
    unknown = [video.id for video in labels or () if video.id not in stored_ids]
    check_leaks([labels or opened.catalog], allow_leaks=allow_leaks, unknown=unknown)
    if low_shot_curve:
        curves = run_low_shot(opened, labels, trained, config, seed=common.seed, training=training)
        _show_curves(curves, out, common)
        return
    task = make_task(opened, labels, training=training)
    suite = run_suite(task, trained, config, seed=common.seed)

    def show() -> None:
        print_records(suite.results)
        print_comparisons(suite.comparisons)

    try:
        if out is not None:
            suite.write(out)
    finally:  # finished probes are printed even if they cannot be written
        result = {"scores": suite.results, "comparisons": suite.comparisons}
        show_result(to_mapping(result), common, show)


def _show_curves(curves: Sequence[LowShotCurve], out: Path | None, common: Common) -> None:
    from clipset.files import write_json

    try:
        if out is not None:
            write_json(out, curves)
    finally:
        show_result({"curves": curves}, common, lambda: print_curves(curves))
