"""`clipset extract`: the features of every video."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from clipset.cli import flags
from clipset.cli.app import app, show_result


@app.command(name="extract")
def extract_command(
    videos: Path,
    /,
    *,
    out: Path,
    backbone: str | None = None,
    frames: int | None = None,
    size: int | None = None,
    workers: flags.Workers = None,
    retry_failed: Annotated[bool | None, flags.SWITCH] = None,
    dry_run: flags.Switch = False,
    ray: str | None = None,
    recipe: flags.RecipeFile = None,
    set: flags.Changes = (),
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Run a backbone on the clips of every video and store the features. Run again, it resumes.

    Exits with 1 if every video failed.

    Example: clipset extract catalog.csv --out store --size 112 --set extract.sampling.flip=false

    Args:
        videos: A folder or a catalog.
        out: The store's folder.
        backbone: The frozen network; `clipset backbones` lists them.
        frames: Frames of a clip (the backbone's own number by default).
        size: Height and width of a clip in pixels.
        retry_failed: Decode failed videos again.
        dry_run: Estimate time, disk and memory from a few videos; write nothing.
        ray: Address of a Ray cluster (without one: a cluster within this process).
    """
    from clipset.data.tasks import join_tasks, read_tasks
    from clipset.features.extract import extract
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
    if dry_run:
        from clipset.config import to_mapping
        from clipset.features.estimate import estimate, free_bytes

        cost, free = estimate(catalog, config, device=common.device), free_bytes(out)
        memory = "unknown" if cost.memory_bytes is None else f"{cost.memory_bytes / 2**30:.1f} GB"
        lines = [
            f"{cost.videos} videos, {cost.clips} clips (measured on {cost.sampled} videos)",
            f"time    about {cost.seconds:.0f} s",
            f"disk    {cost.disk_bytes / 2**20:.1f} MB, {free / 2**20:.0f} MB are free",
            f"memory  about {memory}",
        ]
        show_result(to_mapping(cost) | {"free_bytes": free}, common, lines)
        return
    if ray is None:
        store = extract(catalog, out, config, device=common.device)
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
    line = f"{len(store)} videos, {num_clips} clips, {len(store.failed)} failed → {out}"
    show_result(result, common, [line])
    check_any_read(store)
