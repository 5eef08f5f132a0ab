"""`clipset pretrain`: train the set transformer."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.cli.app import TRAINING, Changes, Switch, Training, app, print_line, show_result


@app.command(name="pretrain")
def pretrain_command(
    store: Path,
    /,
    *,
    out: Path,
    preset: str | None = None,
    epochs: int | None = None,
    recipe: Path | None = None,
    set: Changes = (),
    allow_leaks: Annotated[bool, Switch, Parameter(show_default=False)] = False,
    common: Training = TRAINING,
) -> None:
    """Train the set transformer on a store (masked clips, set contrast). Run again, it resumes.

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
        A TOML file with a section [pretrain]; flags win over it.
    set
        One setting, such as `--set pretrain.learning_rate=1e-3`; may be repeated.
    allow_leaks
        Continue although splits share files or groups, and list them.
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
