"""`clipset pretrain`: train the set transformer."""

from __future__ import annotations

from pathlib import Path

from clipset.cli import flags
from clipset.cli.app import app, show_result


@app.command(name="pretrain")
def pretrain_command(
    store: Path,
    /,
    *,
    out: Path,
    preset: flags.Preset = None,
    epochs: int | None = None,
    recipe: flags.RecipeFile = None,
    set: flags.Changes = (),
    allow_leaks: flags.AllowLeaks = False,
    common: flags.Training = flags.TRAINING,
) -> None:
    """Train the set transformer on a store (masked clips, set contrast). Run again, it resumes.

    Example: clipset pretrain store --out model --epochs 500

    On several devices or machines, see docs/guides/distributed-training.md:
    torchrun --nproc-per-node 4 --no-python clipset pretrain store --out model

    Args:
        store: The store's folder.
        out: The model's folder.
        epochs: Passes over the videos (default: as many as pay).
    """
    from clipset.data.leaks import check_leaks
    from clipset.features.store import open_store
    from clipset.recipe import read_recipe
    from clipset.training.checkpoint import read_card
    from clipset.training.distributed import join_process_group
    from clipset.training.pretrain import pretrain

    typed_settings = {"pretrain.preset": preset, "pretrain.epochs": epochs}
    config = read_recipe(recipe, set, typed_settings).pretrain
    with join_process_group(common.device) as processes:
        feature_store = processes.run(lambda: open_store(store))
        if config.ssl_split == "train":
            checked_catalogs = [feature_store.catalog] if processes.is_main else []
            processes.run(lambda: check_leaks(checked_catalogs, allow_leaks=allow_leaks))
        pretrain(feature_store, out, config, seed=common.random_seed, device=common.device)
        if not processes.is_main:
            return
    card = read_card(out)
    result = {"model": out, "videos": card.videos, "ssl_split": card.split, "seed": card.seed}
    summary_line = f"trained on {card.videos} videos (ssl_split = {card.split}) → {out}"
    show_result(result, common, [summary_line])
