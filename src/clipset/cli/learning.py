"""`pretrain`, `represent`, `probe`: what is learned from a store."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from clipset.cli.app import COMMON, Common, Flat, app, print_line, show_result
from clipset.cli.tables import print_curves, print_records
from clipset.probes.config import ProbeConfig
from clipset.training.config import PretrainConfig

PRETRAIN, PROBE = PretrainConfig(), ProbeConfig()


@app.command
def pretrain(
    store: Path,
    *,
    out: Path,
    config: Annotated[PretrainConfig, Flat] = PRETRAIN,
    common: Common = COMMON,
) -> None:
    """Train the set transformer on a store (masked clips, set contrast). Goes on where it stopped.

    Example: clipset pretrain store --out model --epochs 500

    Parameters
    ----------
    store
        The store's folder.
    out
        The model's folder.
    """
    from clipset.features.store import open_store
    from clipset.training.checkpoint import read_card
    from clipset.training.pretrain import pretrain

    pretrain(open_store(store), out, config, seed=common.seed, device=common.device)
    card = read_card(out)
    result = {"model": out, "videos": card.videos, "ssl_split": card.split, "seed": card.seed}
    line = f"trained on {card.videos} videos (ssl_split = {card.split}) → {out}"
    show_result(result, common, lambda: print_line(line))


@app.command
def represent(
    store: Path, *, out: Path, model: Path | None = None, common: Common = COMMON
) -> None:
    """Write one vector for every clip and video of a store.

    Example: clipset represent store --model model --out vectors

    Parameters
    ----------
    store
        The store's folder.
    out
        Where `vectors.safetensors` and `videos.csv` go.
    model
        A trained model's folder; the backbone's features alone if not given.
    """
    from clipset.devices import find_device
    from clipset.features.store import open_store
    from clipset.representation import represent, write_representations
    from clipset.training.checkpoint import load_model

    encoder = load_model(model)[0].encoder if model else None
    table = represent(open_store(store), encoder, device=find_device(common.device))
    write_representations(table, out)
    result = {"representation": out, "shape": table.vectors.shape}
    videos, clips, width = table.vectors.shape
    line = f"{videos} videos × {clips} clips × {width} numbers → {out}"
    show_result(result, common, lambda: print_line(line))


@app.command
def probe(
    store: Path,
    *,
    model: Path | None = None,
    out: Path | None = None,
    catalog: Path | None = None,
    low_shot_curve: Annotated[bool, Parameter(negative="")] = False,
    config: Annotated[ProbeConfig, Flat] = PROBE,
    common: Common = COMMON,
) -> None:
    """Judge features by the labels: k-NN, linear, MLP, transformer, fine-tune. Needs labels.

    Learning rates and epochs are chosen on a part of the training videos, never on the test split.

    Example: clipset probe store --model model --out results.json

    Example: clipset probe run/store --model run/model --low-shot-curve --out run/low_shot.json

    Parameters
    ----------
    store
        The store's folder.
    model
        A trained model's folder; only the backbone is judged if not given.
    out
        A file for the records.
    catalog
        Labels and splits from this catalog instead of the store's own.
    low_shot_curve
        Instead of the table: the score with 1, 2, 5, 10, 25, 50 and 100 % of the training labels.
    """
    from clipset.config import to_mapping, write_json
    from clipset.features.store import open_store
    from clipset.probes.problem import pose_problem
    from clipset.probes.suite import run_probes
    from clipset.training.checkpoint import load_model
    from clipset.videos.datasets import read_videos

    trained = load_model(model)[0] if model else None
    if low_shot_curve:
        labels = read_videos(catalog) if catalog else None
        _probe_with_fewer_labels(open_store(store), labels, trained, out, config, common)
        return
    problem = pose_problem(open_store(store), read_videos(catalog) if catalog else None)
    records = to_mapping(run_probes(problem, trained, config, seed=common.seed))
    if out:
        write_json(out, records)
    show_result({"records": records}, common, lambda: print_records(records))


def _probe_with_fewer_labels(
    store: Any, labels: Any, model: Any, out: Path | None, config: ProbeConfig, common: Common
) -> None:
    from clipset.config import to_mapping, write_json
    from clipset.probes.low_shot import run_low_shot

    curves = to_mapping(run_low_shot(store, labels, model, config, seed=common.seed))
    if out:
        write_json(out, curves)
    show_result({"curves": curves}, common, lambda: print_curves(curves))
