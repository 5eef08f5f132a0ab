"""`pretrain`, `represent`, `probe`: what is learned from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from clipset.cli.app import COMMON, Changes, Common, app, print_line, show_result
from clipset.cli.tables import print_comparisons, print_curves, print_records
from clipset.evaluation.config import ProbeName


@app.command
def pretrain(
    store: Path,
    *,
    out: Path,
    preset: str | None = None,
    epochs: int | None = None,
    recipe: Path | None = None,
    set: Changes = (),
    allow_leaks: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Train the set transformer on a store (masked clips, set contrast). Goes on where it stopped.

    Example: clipset pretrain store --out model --epochs 500

    On several devices or machines, see docs/guides/distributed-training.md:
    torchrun --nproc-per-node 4 --no-python clipset pretrain store --out model

    Parameters
    ----------
    store
        The store's folder.
    out
        The model's folder.
    preset
        Named settings: recommended, paper or official.
    epochs
        Passes over the videos.
    recipe
        A TOML file with a table `pretrain`; flags win over it.
    set
        One setting, such as `--set pretrain.learning_rate=1e-3`; may be repeated.
    allow_leaks
        Go on where splits share a file or a group; what they share is said.
    """
    from clipset.data.leaks import check_leaks
    from clipset.features.store import open_store
    from clipset.recipe import read_recipe
    from clipset.training.checkpoint import read_card
    from clipset.training.distributed import join_process_group
    from clipset.training.pretrain import pretrain

    flags = {"pretrain.preset": preset, "pretrain.epochs": epochs}
    config = read_recipe(recipe, set, flags).pretrain
    with join_process_group(common.device) as processes:
        opened = processes.run(lambda: open_store(store))
        if config.ssl_split == "train":
            first = [opened.catalog] if processes.is_main else []
            processes.run(lambda: check_leaks(first, allow_leaks=allow_leaks))
        pretrain(opened, out, config, seed=common.seed, device=common.device)
        if not processes.is_main:
            return
    card = read_card(out)
    result = {"model": out, "videos": card.videos, "ssl_split": card.split, "seed": card.seed}
    line = f"trained on {card.videos} videos (ssl_split = {card.split}) → {out}"
    show_result(result, common, lambda: print_line(line))


@app.command
def represent(
    store: Path,
    *,
    out: Path,
    model: Path | None = None,
    parts: str | None = None,
    window: float | None = None,
    common: Common = COMMON,
) -> None:
    """Write one vector for every clip and video of a store.

    Example: clipset represent store --model model --out vectors

    The result is read in one line:

        videos = pandas.read_parquet("vectors/videos.parquet")

        pooled = safetensors.numpy.load_file("vectors/vectors.safetensors")["pooled"]

        LogisticRegression().fit(pooled, videos["label"])

    Parameters
    ----------
    store
        The store's folder.
    out
        Where `vectors.safetensors`, `videos.csv` and (with pyarrow) `videos.parquet` go.
    model
        A trained model's folder, or its name on the Hugging Face hub; the backbone's features alone
        if not given.
    parts
        What stands side by side in a vector: some of clip (the feature), token (what the model
        makes of the clip) and set (what it makes of all clips), such as `clip,token,set`; clip,set
        if not given.
    window
        Seconds: longer videos get a row for each window of this length, next to one for the whole.
    """
    from clipset.config import check_output
    from clipset.devices import find_device
    from clipset.errors import ModelError
    from clipset.features.store import open_store
    from clipset.representation import DEFAULT_PARTS, embed_store, parse_parts, write_vectors
    from clipset.training.checkpoint import find_model, load_model

    chosen = parse_parts(parts) if parts else DEFAULT_PARTS
    if parts and model is None and chosen != ("clip",):
        raise ModelError(f"the parts {parts} need a model; give one with --model")
    check_output(out, "folder")
    encoder = load_model(find_model(model)).encoder if model else None
    device = find_device(common.device)
    table = embed_store(open_store(store), encoder, parts=chosen, window=window, device=device)
    write_vectors(table, out)
    result = {"representation": out, "shape": table.vectors.shape, "parts": table.parts}
    rows, clips, width = table.vectors.shape
    what = f"{rows} videos × {clips} clips" if window is None else f"{rows} videos and windows"
    line = f"{what} × {width} numbers ({', '.join(table.parts)}) → {out}"
    show_result(result, common, lambda: print_line(line))


@app.command
def probe(
    store: Path,
    *,
    model: Path | None = None,
    out: Path | None = None,
    catalog: Path | None = None,
    low_shot_curve: Annotated[bool, Parameter(negative="")] = False,
    probes: tuple[ProbeName, ...] | None = None,
    seeds: int | None = None,
    recipe: Path | None = None,
    set: Changes = (),
    allow_leaks: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Judge features by the labels: k-NN, linear, MLP, transformer, fine-tune. Needs labels.

    Every choice is made on a part of the training videos (or the split `val`), never on the test
    split. Targets instead of labels are predicted as numbers.

    Example: clipset probe store --model model --out results.json

    Example: clipset probe run/store --model run/model --low-shot-curve --out run/low_shot.json

    Parameters
    ----------
    store
        The store's folder.
    model
        A trained model's folder or name; only the backbone is judged if not given.
    out
        A file for the records; comparisons and predictions go beside it.
    catalog
        Labels and splits from this catalog instead of the store's own.
    probes
        The probes to run; may be repeated.
    seeds
        Repetitions of each trained probe.
    low_shot_curve
        Instead of the table: the score with 1, 2, 5, 10, 25, 50 and 100 % of the training labels.
    recipe
        A TOML file with a table `evaluate`; flags win over it.
    set
        One setting, such as `--set evaluate.num_seeds=5`; may be repeated.
    allow_leaks
        Go on where splits share a file or a group, or --catalog has ids that the store does not
        know; what it is is said.
    """
    from clipset.config import check_output, to_mapping
    from clipset.data.catalog import read_catalog
    from clipset.data.leaks import check_leaks
    from clipset.evaluation.low_shot import run_low_shot
    from clipset.evaluation.suite import run_suite
    from clipset.evaluation.task import make_task
    from clipset.features.store import open_store
    from clipset.recipe import read_recipe
    from clipset.training.checkpoint import find_model, load_model, read_training

    config = read_recipe(
        recipe, set, {"evaluate.probes": probes, "evaluate.num_seeds": seeds}
    ).evaluate
    if out is not None:
        check_output(out, "file")
    where = find_model(model) if model else None
    trained, training = (load_model(where), read_training(where)) if where else (None, None)
    labels, opened = read_catalog(catalog) if catalog else None, open_store(store)
    known = {entry.id for entry in opened.everything}
    unknown = [video.id for video in labels or () if video.id not in known]
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
    finally:  # finished probes are shown, wherever else they cannot be put
        content = {"records": suite.results, "comparisons": suite.comparisons}
        show_result(to_mapping(content), common, show)


def _show_curves(curves: Any, out: Path | None, common: Common) -> None:
    from clipset.config import write_json

    try:
        if out is not None:
            write_json(out, curves)
    finally:
        show_result({"curves": curves}, common, lambda: print_curves(curves))
