"""`clipset pretrain-backbone`: train a video backbone of one's own."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.cli import flags
from clipset.cli.app import app, show_result


@app.command(name="pretrain-backbone")
def pretrain_backbone_command(
    videos: Path,
    /,
    *,
    out: Path,
    method: str | None = None,
    vit: str | None = None,
    frames: flags.Int | None = None,
    size: flags.Int | None = None,
    minutes: float | None = None,
    epochs: flags.Int | None = None,
    set: Annotated[
        tuple[str, ...],
        Parameter(
            metavar="NAME=VALUE",
            help="Another setting, such as `batch_size=32`; repeat the flag for more settings.",
        ),
        flags.SWITCH,
    ] = (),
    common: flags.Training = flags.TRAINING,
) -> None:
    """Train a video backbone without labels: VideoMAE or MoCo v3. Run again, it resumes.

    Writes backbone.safetensors, which every command takes as --backbone. quarter.safetensors and
    half.safetensors are the backbone after a quarter and after half of the training. If the catalog
    has splits, only `train` is used.

    Example: clipset pretrain-backbone videos --out vit --minutes 60

    Example: clipset extract videos --backbone vit/backbone.safetensors --out store

    Args:
        videos: A folder or a catalog.
        out: The backbone's folder.
        method: videomae, moco or sparse-moco (videomae by default).
        vit: Size of the transformer: mini, tiny, small or base (tiny by default).
        frames: Frames of a clip (8 by default).
        size: Height and width of a clip in pixels (112 by default).
        minutes: Minutes of training, not counting the time to read the videos.
        epochs: Passes over the videos (100 by default). Not allowed together with --minutes.
    """
    from clipset.backbones.trained import read_header
    from clipset.config import build
    from clipset.data.catalog import read_catalog
    from clipset.recipe import apply_change
    from clipset.ssl.config import BackboneTraining
    from clipset.ssl.train import train_backbone

    settings: dict[str, object] = {}
    for change in set:
        apply_change(settings, change)
    typed_settings = {
        "method": method, "vit": vit, "frames": frames, "size": size, "minutes": minutes,
        "epochs": epochs,
    }  # fmt: skip
    settings |= {name: value for name, value in typed_settings.items() if value is not None}
    config = build(BackboneTraining, settings, "the settings")
    path = train_backbone(
        read_catalog(videos), out, config, seed=common.random_seed, device=common.device
    )
    training = read_header(path).training
    line = (
        f"{training['method']} on {training['videos']} videos, {training['steps']} steps in "
        f"{training['minutes']:.1f} minutes → {path}"
    )
    show_result({"backbone": path, **training}, common, [line])
