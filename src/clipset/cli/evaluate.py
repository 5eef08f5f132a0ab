"""`clipset evaluate`: score features by probes."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.cli.tables import comparison_table, curve_table, score_table
from clipset.probes.config import ProbeName


@app.command(name="evaluate")
def evaluate_command(
    store: Path,
    /,
    *,
    model: flags.Model = None,
    out: Path | None = None,
    catalog: Path | None = None,
    probes: Annotated[
        tuple[ProbeName, ...] | None, Parameter(metavar="CHOICE"), flags.SWITCH
    ] = None,
    seeds: flags.Int | None = None,
    low_shot_curve: flags.Switch = False,
    recipe: flags.RecipeFile = None,
    set: Annotated[flags.Changes, flags.setting_flag("evaluate.label_fraction=0.1")] = (),
    allow_leaks: flags.Switch = False,
    common: flags.Seeded = flags.SEEDED,
) -> None:
    """Score features with probes: k-NN, linear, MLP, transformer, fine-tuning. Needs labels.

    A probe is a simple classifier. `knn` sees the backbone's features, `scale_knn` also the
    outputs of the model; likewise the other pairs. `transformer` is trained from random weights,
    `finetune` from those of the model; by default, both are mixed with a probe on the clips in
    order. Probes that need a model are skipped without --model.

    Hyper-parameters are selected on a part of the training videos (or the split `val`), never on
    the test split. Numeric targets are predicted by regression.

    Example: clipset evaluate store --model model --out results.json

    Example: clipset evaluate run/store --model run/model --low-shot-curve \\
        --out run/low_shot.json

    Args:
        store: The store's folder.
        model: A model's folder or hub name; without one, only the backbone is evaluated.
        out: A file for the results; comparisons and predictions go beside it.
        catalog: Labels and splits from this catalog instead of the store's own.
        probes: A probe to run; repeat the flag for more (by default all but attentive and
            scale_attentive).
        seeds: Number of repetitions of each trained probe (3 by default). The first uses the seed
            of --seed, the next ones the numbers after it.
        low_shot_curve: Only score with 1, 2, 5, 10, 25, 50 and 100 % of the training labels, by
            default linear, scale_linear, transformer and finetune.
        allow_leaks: Continue despite leaks between splits or unknown ids in --catalog; list them.
    """
    from clipset.config import to_mapping
    from clipset.data.catalog import read_catalog
    from clipset.data.leaks import check_leaks
    from clipset.evaluation.low_shot import run_low_shot
    from clipset.evaluation.suite import run_suite
    from clipset.features.store import open_store
    from clipset.files import check_output, write_json
    from clipset.probes.task import make_task
    from clipset.recipe import read_recipe
    from clipset.training.checkpoint import find_model, load_model, training_settings

    typed_settings = {"evaluate.probes": probes, "evaluate.num_seeds": seeds}
    config, seed = read_recipe(recipe, set, typed_settings).evaluate, common.random_seed
    if out is not None:
        check_output(out, "file")
    model_folder = find_model(model) if model else None
    trained = load_model(model_folder) if model_folder else None
    training = None if trained is None else training_settings(trained.card)
    labels = read_catalog(catalog) if catalog else None
    feature_store = open_store(store)
    stored_ids = {entry.id for entry in feature_store.all_entries}
    unknown_ids = [video.id for video in labels or () if video.id not in stored_ids]
    check_leaks([labels or feature_store.catalog], allow_leaks=allow_leaks, unknown=unknown_ids)
    result: dict[str, Any]
    if low_shot_curve:
        curves = run_low_shot(
            feature_store, labels, trained, config, seed=seed, probes=probes, training=training
        )
        result, result_tables = {"curves": curves}, [curve_table(curves)]
    else:
        task = make_task(feature_store, labels, training=training)
        suite = run_suite(task, trained, config, seed=seed)
        result = {"scores": suite.results, "comparisons": suite.comparisons}
        result_tables = [score_table(suite.results)]
        result_tables += [comparison_table(suite.comparisons)] if suite.comparisons else []
    try:
        if out is not None and low_shot_curve:
            write_json(out, curves)
        elif out is not None:
            suite.write(out)
    finally:  # what is finished is printed even if it cannot be written
        show_result(to_mapping(result), common, result_tables)
