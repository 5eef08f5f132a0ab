"""`extract`, `import`, `verify`, `repair`, `merge`: feature stores."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from clipset.cli.app import COMMON, Changes, Common, Flat, app, print_line, show_result
from clipset.features.config import ExtractConfig
from clipset.features.import_config import ImportConfig

IMPORT = ImportConfig()


@app.command
def extract(
    videos: Path,
    *,
    out: Path,
    backbone: str | None = None,
    frames: int | None = None,
    size: int | None = None,
    workers: int | None = None,
    retry_failed: Annotated[bool | None, Parameter(negative="")] = None,
    dry_run: Annotated[bool, Parameter(negative="")] = False,
    ray: str | None = None,
    recipe: Path | None = None,
    set: Changes = (),
    common: Common = COMMON,
) -> None:
    """Show the clips of every video to a backbone and store the features. Goes on where it stopped.

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
        Processes that decode (as many as cores, at most 8; 0: decode in the main process).
    retry_failed
        Try failed videos again.
    dry_run
        Say what time, disk and memory it will take, measured on a few videos; write nothing.
    ray
        Work on the Ray cluster at this address (without one: on a cluster within this process).
    recipe
        A TOML file with a table `extract`; flags win over it.
    set
        One setting, such as `--set extract.preset=paper`; may be repeated.
    """
    from clipset.data.catalog import read_catalog
    from clipset.features.extract import extract
    from clipset.features.store import refuse_nothing_read
    from clipset.recipe import read_recipe

    flags = {
        "extract.backbone": backbone,
        "extract.frames": frames,
        "extract.size": size,
        "extract.workers": workers,
        "extract.retry_failed": retry_failed,
    }
    config = read_recipe(recipe, set, flags).extract
    catalog = read_catalog(videos)
    if dry_run:
        _estimate(catalog, out, config, common)
        return
    if ray is None:
        store = extract(catalog, out, config, seed=common.seed, device=common.device)
    else:
        from clipset.features.cluster import extract_on_ray

        store = extract_on_ray(
            catalog, out, config, seed=common.seed, device=common.device, address=ray
        )
    result = {
        "store": out,
        "videos": len(store),
        "failed": {entry.id: entry.reason for entry in store.failed},
        "damaged": {entry.id: entry.damage for entry in store.entries if entry.damage},
        "clips": int(store.random.count.sum() + store.regular.count.sum()) if len(store) else 0,
    }
    line = f"{len(store)} videos, {result['clips']} clips, {len(store.failed)} failed → {out}"
    show_result(result, common, lambda: print_line(line))
    refuse_nothing_read(store)


def _estimate(catalog: Any, out: Path, config: ExtractConfig, common: Common) -> None:
    from clipset.config import to_mapping
    from clipset.features.estimate import estimate, free_bytes

    cost = estimate(catalog, config, seed=common.seed, device=common.device)
    free = free_bytes(out)

    def show() -> None:
        memory = "unknown" if cost.memory_bytes is None else f"{cost.memory_bytes / 2**30:.1f} GB"
        print_line(f"{cost.videos} videos, {cost.clips} clips (measured on {cost.sampled} videos)")
        print_line(f"time    about {cost.seconds:.0f} s")
        print_line(f"disk    {cost.disk_bytes / 2**20:.1f} MB, {free / 2**20:.0f} MB are free")
        print_line(f"memory  about {memory}")

    show_result(to_mapping(cost) | {"free_bytes": free}, common, show)


@app.command(name="import")
def import_features(
    features: Path,
    *,
    out: Path,
    catalog: Path | None = None,
    test_fraction: float = 0.25,
    config: Annotated[ImportConfig, Flat] = IMPORT,
    common: Common = COMMON,
) -> None:
    """Make a store of features that you already have: one file (npy, npz, pt, h5) for each video.

    A file holds an array (V, D), one row for each clip; arrays `times` and `boxes` may say where
    the clips are. Random and regular clips are the same rows.

    Example: clipset import features --out store --clip-seconds 2

    Parameters
    ----------
    features
        A folder of files; sub-folders are labels.
    out
        The store's folder.
    catalog
        A catalog with the ids, labels and splits of the videos.
    test_fraction
        Share of the labelled videos set aside for the test, where nothing says which.
    """
    from clipset.data.catalog import read_catalog
    from clipset.data.splits import assign_splits
    from clipset.features.importers import catalog_of, import_features

    listed = read_catalog(catalog) if catalog else catalog_of(features)
    listed = assign_splits(listed, test_fraction=test_fraction, seed=common.seed)
    store = import_features(features, out, listed, config)
    result = {
        "store": out,
        "videos": len(store),
        "failed": {entry.id: entry.reason for entry in store.failed},
        "clips": store.manifest.sampling.num_clips,
        "dim": store.manifest.backbone.dim,
    }
    line = f"{len(store)} videos × {result['clips']} clips × {result['dim']} numbers"
    show_result(result, common, lambda: print_line(f"{line}, {len(store.failed)} failed → {out}"))


@app.command
def verify(
    store: Path,
    *,
    videos: Annotated[bool, Parameter(negative="")] = False,
    common: Common = COMMON,
) -> None:
    """Check every stored row against its checksum. Exits with 1 if something is wrong.

    Catalog, ledger, manifest and files are also compared with each other; of a run, the model, the
    vectors and all else that has a checksum.

    Example: clipset verify store

    Example: clipset verify runs/first --videos

    Parameters
    ----------
    store
        The folder of a store, or of a run.
    videos
        Also compare the videos' files with those that were read.
    """
    from clipset.features.store import FeatureStore, store_digest
    from clipset.features.verify import verify_store

    if (store / "run.json").is_file():
        from clipset.pipeline import verify_run

        problems, rows = verify_run(store, videos=videos), store / "store"
    else:
        problems, rows = verify_store(store, videos=videos), store
    found = FeatureStore(rows)
    result = {
        "store": store,
        "videos": len(found),
        "failed": len(found.failed),
        "pending": len(found.pending),
        "problems": dict(problems),
        "digest": store_digest(rows) if not problems else None,
    }

    def show() -> None:
        for video, problem in problems:
            print_line(f"{video}: {problem}")
        verdict = f"{len(problems)} with problems" if problems else "all as written"
        counts = f"{len(found)} videos, {len(found.failed)} failed, {len(found.pending)} pending"
        print_line(f"{counts}: {verdict}")

    show_result(result, common, show)
    if problems:
        raise SystemExit(1)


@app.command
def repair(
    store: Path,
    *,
    workers: int | None = None,
    timeout: float | None = None,
    backbone: str | None = None,
    common: Common = COMMON,
) -> None:
    """Make the rows again that `verify` finds wrong, and only those. Exits with 1 if some are lost.

    Example: clipset repair store

    Parameters
    ----------
    store
        The store's folder.
    workers
        Processes that decode (as many as cores, at most 8; 0: decode in the main process).
    timeout
        Seconds after which a video counts as failed (300 if not given); needs workers.
    backbone
        The store's backbone, where that is a file or a model of the hub: mine.py:make, hf:FOLDER.
    """
    from clipset.features.maintenance import repair_store

    done = repair_store(
        store, workers=workers, timeout=timeout, device=common.device, backbone=backbone
    )

    def show() -> None:
        for video, reason in done.failed.items():
            print_line(f"{video}: {reason}")
        print_line(
            f"{len(done.redone)} made again as they were, {len(done.changed)} with other rows, "
            f"{len(done.failed)} lost → {store}"
        )

    result = {"store": store, "redone": done.redone, "changed": done.changed, "lost": done.failed}
    show_result(result, common, show)
    if done.failed:
        raise SystemExit(1)


@app.command
def merge(*stores: Path, out: Path, common: Common = COMMON) -> None:
    """Make one store of several that were made in the same way, on one machine or many.

    Example: clipset merge half-1 half-2 --out store

    Parameters
    ----------
    stores
        The folders of the stores, in the order that their videos shall have.
    out
        The merged store's folder.
    """
    from clipset.features.maintenance import merge_stores

    merged = merge_stores(stores, out)
    counts = {
        "videos": len(merged),
        "failed": len(merged.failed),
        "pending": len(merged.pending),
    }
    line = f"{len(merged)} videos, {len(merged.failed)} failed → {out}"
    show_result({"store": out, **counts}, common, lambda: print_line(line))
