"""`clipset extract`: the features of every video."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from cyclopts import Parameter

from clipset.cli.app import COMPUTING, Changes, Computing, Switch, app, print_line, show_result

if TYPE_CHECKING:
    from clipset.data.catalog import Catalog
    from clipset.features.config import ExtractConfig


@app.command(name="extract")
def extract_command(
    videos: Path,
    /,
    *,
    out: Path,
    backbone: str | None = None,
    frames: int | None = None,
    size: int | None = None,
    workers: int | None = None,
    retry_failed: Annotated[bool | None, Switch] = None,
    dry_run: Annotated[bool, Switch, Parameter(show_default=False)] = False,
    ray: str | None = None,
    recipe: Path | None = None,
    set: Changes = (),
    common: Computing = COMPUTING,
) -> None:
    """Run a backbone on the clips of every video and store the features. Run again, it resumes.

    Exits with 1 if every video failed.

    Example: clipset extract catalog.csv --out store --size 112 --set extract.sampling.flip=false

    Parameters
    ----------
    videos
        A folder or a catalog.
    out
        The store's folder.
    backbone
        The frozen network; `clipset backbones` lists them.
    frames
        Frames of a clip (the backbone's own number by default).
    size
        Height and width of a clip in pixels.
    workers
        Decoding processes (one per core, at most 8; 0: decode in the main process).
    retry_failed
        Decode failed videos again.
    dry_run
        Estimate time, disk and memory from a few videos; write nothing.
    ray
        Address of a Ray cluster (without one: a cluster within this process).
    recipe
        A TOML file with sections [data] and [extract]; flags win over it.
    set
        One setting, such as `--set extract.preset=paper`; may be repeated.
    """
    from clipset.data.tasks import join_tasks, read_tasks
    from clipset.features.extract import extract
    from clipset.features.store import check_any_read
    from clipset.recipe import read_recipe

    flags = {
        "extract.backbone": backbone,
        "extract.frames": frames,
        "extract.size": size,
        "extract.workers": workers,
        "extract.retry_failed": retry_failed,
        "extract.seed": common.seed or None,
    }
    settings = read_recipe(recipe, set, flags)
    config, catalog = settings.extract, join_tasks(read_tasks(videos, settings.data))
    if dry_run:
        _estimate(catalog, out, config, common)
        return
    if ray is None:
        store = extract(catalog, out, config, device=common.device)
    else:
        from clipset.features.cluster import extract_on_ray

        store = extract_on_ray(catalog, out, config, device=common.device, address=ray)
    result = {
        "store": out,
        "videos": len(store),
        "failed": {entry.id: entry.reason for entry in store.failed},
        "damaged": {entry.id: entry.damage for entry in store.entries if entry.damage},
        "clips": int(store.random.count.sum() + store.regular.count.sum()) if len(store) else 0,
    }
    line = f"{len(store)} videos, {result['clips']} clips, {len(store.failed)} failed → {out}"
    show_result(result, common, lambda: print_line(line))
    check_any_read(store)


def _estimate(catalog: Catalog, out: Path, config: ExtractConfig, common: Computing) -> None:
    from clipset.config import to_mapping
    from clipset.features.estimate import estimate, free_bytes

    cost = estimate(catalog, config, device=common.device)
    free = free_bytes(out)

    def show() -> None:
        memory = "unknown" if cost.memory_bytes is None else f"{cost.memory_bytes / 2**30:.1f} GB"
        print_line(f"{cost.videos} videos, {cost.clips} clips (measured on {cost.sampled} videos)")
        print_line(f"time    about {cost.seconds:.0f} s")
        print_line(f"disk    {cost.disk_bytes / 2**20:.1f} MB, {free / 2**20:.0f} MB are free")
        print_line(f"memory  about {memory}")

    show_result(to_mapping(cost) | {"free_bytes": free}, common, show)
