"""`clipset import`: a feature store from existing features."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.features.config import ImportConfig
from clipset.text import counted

DEFAULTS = ImportConfig()


@app.command(name="import")
def import_command(
    features: Path,
    /,
    *,
    out: Path,
    catalog: Path | None = None,
    test_fraction: float = 0.25,
    config: Annotated[ImportConfig, Parameter(name="*")] = DEFAULTS,
    common: flags.Seeded = flags.SEEDED,
) -> None:
    """Make a store of existing features: one file (npy, npz, pt, h5) for each video.

    A file holds an array (V, D): V clips of a video, D numbers each. Two more arrays, `times` and
    `boxes`, may say where the clips are in the video. `clipset extract` stores random clips for
    training and regular clips for evaluation; here, the same clips serve as both.

    Example: clipset import features --out store --clip-seconds 2

    Args:
        features: A folder of files; sub-folders are labels.
        out: The store's folder.
        catalog: A catalog with the ids, labels and splits of the videos.
        test_fraction: Fraction of the labelled videos used for testing, where no split is given.
        config.clips: Number of clips to store for each video, evenly spread over those in its file
            (by default all; then every file must have as many).
        config.clip_seconds: Duration of a clip in seconds, where a file does not say when
            clips end.
        config.key: Name of the array with the features, in a file with several arrays.
        config.dtype: Number type of the stored features.
    """
    from clipset.data.catalog import read_catalog
    from clipset.data.splits import assign_splits
    from clipset.features.importers import catalog_of_features, import_features

    videos = read_catalog(catalog) if catalog else catalog_of_features(features)
    videos = assign_splits(videos, test_fraction=test_fraction, seed=common.random_seed)
    store = import_features(features, out, videos, config)
    num_clips, dim = store.manifest.sampling.num_clips, store.manifest.backbone.dim
    failed = {entry.id: entry.reason for entry in store.failed}
    counts = f"{counted(len(store), 'video')} × {counted(num_clips, 'clip')} × {dim} numbers"
    line = f"{counts}, {len(failed)} failed → {out}"
    result = {
        "store": out, "videos": len(store), "failed": failed, "clips": num_clips, "dim": dim
    }  # fmt: skip
    show_result(result, common, [line])
