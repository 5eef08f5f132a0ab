"""`clipset pretrain`: train the set transformer, on a store or end to end with a backbone."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.errors import ConfigError


@app.command(name="pretrain")
def pretrain_command(
    source: Path,
    /,
    *,
    out: Path,
    preset: flags.Preset = None,
    epochs: flags.Int | None = None,
    end_to_end: flags.Switch = False,
    backbone: str | None = None,
    drop: float | None = None,
    recipe: flags.RecipeFile = None,
    set: Annotated[flags.Changes, flags.setting_flag("pretrain.batch_size=64")] = (),
    allow_leaks: flags.AllowLeaks = False,
    common: flags.Training = flags.TRAINING,
) -> None:
    """Train the set transformer on a store, without labels. Run again, it resumes.

    It learns to predict the features of hidden clips from the other clips of a video, and to
    recognise which two sets of clips are from the same video.

    Example: clipset pretrain store --out model --epochs 500

    To train a video backbone as well:

        clipset pretrain videos --end-to-end --backbone videomae_b --out model

    On several devices or machines, see docs/guides/distributed-training.md:

        torchrun --nproc-per-node 4 --no-python clipset pretrain store --out model

    Args:
        source: The store's folder. With --end-to-end: a folder of videos or a catalog instead.
        out: The model's folder.
        epochs: Epochs of training (chosen from the data by default).
        end_to_end: Decode the videos and train a video transformer together with the model.
        backbone: With --end-to-end: the video transformer to start from.
        drop: With --end-to-end: the fraction of dropped tokens, up to 0.95.
    """
    from clipset.data.leaks import check_leaks
    from clipset.data.tasks import join_tasks, read_tasks
    from clipset.features.store import open_store
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
    config, seed, device = settings.pretrain, common.random_seed, common.device
    if not end_to_end and (backbone is not None or drop is not None):
        raise ConfigError("--backbone and --drop need --end-to-end; a store has its features")
    with join_process_group(device) as processes:
        if end_to_end:
            catalog = processes.run(lambda: join_tasks(read_tasks(source, settings.data)))
        else:
            feature_store = processes.run(lambda: open_store(source))
            catalog = feature_store.catalog
        if config.ssl_split == "train":
            checked = [catalog] if processes.is_main else []
            processes.run(lambda: check_leaks(checked, allow_leaks=allow_leaks))
        if end_to_end:
            from clipset.end_to_end.model import EndToEndConfig
            from clipset.end_to_end.pretrain import pretrain_end_to_end

            backbone_config = EndToEndConfig() if drop is None else EndToEndConfig(drop=drop)
            pretrain_end_to_end(
                catalog, out, settings.extract, config, backbone_config, seed=seed, device=device
            )
        else:
            from clipset.training.pretrain import pretrain

            pretrain(feature_store, out, config, seed=seed, device=device)
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
        backbone_path, reasons = out / BACKBONE_FILE, unreadable.reasons
        result |= {"backbone": backbone_path, "unreadable": reasons}
        summary_line += f", backbone {backbone_path}, {len(reasons)} unreadable"
    show_result(result, common, [summary_line])
