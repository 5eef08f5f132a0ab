"""`clipset extract`: the features of every video."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.text import counted


@app.command(name="extract")
def extract_command(
    videos: Path,
    /,
    *,
    out: Path,
    backbone: str | None = None,
    frames: flags.Int | None = None,
    size: flags.Int | None = None,
    workers: flags.Workers = None,
    retry_failed: Annotated[bool | None, flags.SWITCH] = None,
    part: str | None = None,
    ray: str | None = None,
    recipe: flags.RecipeFile = None,
    set: Annotated[flags.Changes, flags.setting_flag("extract.stride=4")] = (),
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Run a backbone on the clips of every video and store the features. Run again, it resumes.

    Exits with 1 if every video failed. The random clips are drawn with --seed (0 by default): the
    same seed gives the same clips.

    Example: clipset extract catalog.csv --out store --size 112 \\
        --set extract.sampling.flip=false

    Args:
        videos: A folder or a catalog.
        out: The store's folder.
        backbone: The frozen network; `clipset backbones` lists the names.
        frames: Frames of a clip (by default 1 if the backbone encodes single frames, else its own
            number).
        size: Height and width of a clip in pixels.
        retry_failed: Decode all failed videos again (by default only those with an error that may
            be gone, such as a missing file or a timeout).
        part: Extract only this part of the videos: 2/8 is the second of eight. `clipset merge`
            joins the stores of all parts.
        ray: Extract on the Ray cluster at this address; without an address, on this machine.
    """
    from clipset.data.splits import select_part
    from clipset.data.tasks import join_tasks, read_tasks
    from clipset.errors import ConfigError
    from clipset.features.extract import extract, plan_store
    from clipset.features.store import check_any_read
    from clipset.recipe import read_recipe

    typed_settings = {
        "extract.backbone": backbone,
        "extract.frames": frames,
        "extract.size": size,
        "extract.workers": workers,
        "extract.retry_failed": retry_failed,
        "extract.seed": common.seed,
    }
    settings = read_recipe(recipe, set, typed_settings)
    config, catalog = settings.extract, join_tasks(read_tasks(videos, settings.data))
    store_plan = None
    if part is not None:
        whole_catalog, catalog = catalog, select_part(catalog, part)
        if ray is not None:
            raise ConfigError("--part divides the videos among jobs without Ray; leave out --ray")
        store_plan = plan_store(config, whole_catalog.videos, out)  # all parts get the same clips
    if ray is None:
        store = extract(catalog, out, config, device=common.device, plan=store_plan)
    else:
        from clipset.features.cluster import extract_on_ray

        store = extract_on_ray(catalog, out, config, device=common.device, address=ray)
    num_clips = int(store.random.count.sum() + store.regular.count.sum()) if len(store) else 0
    result = {
        "store": out,
        "videos": len(store),
        "failed": {entry.id: entry.reason for entry in store.failed},
        "damaged": {entry.id: entry.damage for entry in store.entries if entry.damage},
        "clips": num_clips,
    }
    counts = f"{counted(len(store), 'video')}, {counted(num_clips, 'clip')}"
    summary_line = f"{counts}, {len(store.failed)} failed → {out}"
    show_result(result, common, [summary_line])
    check_any_read(store)
