"""`clipset pretrain`: train the set transformer, on a store or end to end with a backbone."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.errors import ConfigError

if TYPE_CHECKING:
    from clipset.recipe import Recipe
    from clipset.training.distributed import ProcessGroup


@app.command(name="pretrain")
def pretrain_command(
    store: Path,
    /,
    *,
    out: Path,
    preset: flags.Preset = None,
    epochs: int | None = None,
    end_to_end: flags.Switch = False,
    backbone: str | None = None,
    drop: float | None = None,
    recipe: flags.RecipeFile = None,
    set: flags.Changes = (),
    allow_leaks: flags.AllowLeaks = False,
    common: flags.Training = flags.TRAINING,
) -> None:
    """Train the set transformer on a store (masked clips, set contrast). Run again, it resumes.

    Example: clipset pretrain store --out model --epochs 500

    On several devices or machines, see docs/guides/distributed-training.md:
    torchrun --nproc-per-node 4 --no-python clipset pretrain store --out model

    With a backbone that is trained, too: clipset pretrain --end-to-end videos --backbone videomae_b
    --out model

    Args:
        store: The store's folder; with --end-to-end, a folder of videos or a catalog.
        out: The model's folder.
        epochs: Passes over the videos (default: as many as pay).
        end_to_end: Decode the videos and train a video transformer together with the model.
        backbone: With --end-to-end: the video transformer to start from.
        drop: With --end-to-end: the fraction of dropped tokens, up to 0.95.
    """
    from clipset.recipe import read_recipe
    from clipset.training.checkpoint import read_card
    from clipset.training.distributed import join_process_group

    typed_settings = {
        "pretrain.preset": preset,
        "pretrain.epochs": epochs,
        "extract.backbone": backbone,
        "extract.seed": common.seed,
    }
    settings = read_recipe(recipe, set, typed_settings)
    if not end_to_end and (backbone is not None or drop is not None):
        raise ConfigError("--backbone and --drop are for --end-to-end; a store has its features")
    with join_process_group(common.device) as processes:
        if end_to_end:
            _train_end_to_end(store, out, settings, drop, allow_leaks, common, processes)
        else:
            _train_on_store(store, out, settings, allow_leaks, common, processes)
        if not processes.is_main:
            return
    card = read_card(out)
    result = {"model": out, "videos": card.videos, "ssl_split": card.split, "seed": card.seed}
    summary_line = f"trained on {card.videos} videos (ssl_split = {card.split}) → {out}"
    if end_to_end:
        from clipset.end_to_end.pretrain import BACKBONE_FILE
        from clipset.end_to_end.video_source import Unreadable

        unreadable = Unreadable(out)
        unreadable.read()
        result |= {"backbone": out / BACKBONE_FILE, "unreadable": unreadable.reasons}
        summary_line = (
            f"{summary_line}, backbone {out / BACKBONE_FILE}, {len(unreadable.reasons)} unreadable"
        )
    show_result(result, common, [summary_line])


def _train_on_store(
    store: Path,
    out: Path,
    settings: Recipe,
    allow_leaks: bool,
    common: flags.Training,
    processes: ProcessGroup,
) -> None:
    from clipset.data.leaks import check_leaks
    from clipset.features.store import open_store
    from clipset.training.pretrain import pretrain

    config = settings.pretrain
    feature_store = processes.run(lambda: open_store(store))
    if config.ssl_split == "train":
        first = [feature_store.catalog] if processes.is_main else []
        processes.run(lambda: check_leaks(first, allow_leaks=allow_leaks))
    pretrain(feature_store, out, config, seed=common.random_seed, device=common.device)


def _train_end_to_end(
    videos: Path,
    out: Path,
    settings: Recipe,
    drop: float | None,
    allow_leaks: bool,
    common: flags.Training,
    processes: ProcessGroup,
) -> None:
    from clipset.data.leaks import check_leaks
    from clipset.data.tasks import join_tasks, read_tasks
    from clipset.end_to_end.model import EndToEndConfig
    from clipset.end_to_end.pretrain import pretrain_end_to_end

    config = EndToEndConfig() if drop is None else EndToEndConfig(drop=drop)
    catalog = processes.run(lambda: join_tasks(read_tasks(videos, settings.data)))
    if settings.pretrain.ssl_split == "train":
        first = [catalog] if processes.is_main else []
        processes.run(lambda: check_leaks(first, allow_leaks=allow_leaks))
    pretrain_end_to_end(
        catalog,
        out,
        settings.extract,
        settings.pretrain,
        config,
        seed=common.random_seed,
        device=common.device,
    )
