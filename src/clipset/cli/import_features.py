"""`clipset import`: a feature store from existing features."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.cli.app import SEEDED, Seeded, app, print_line, show_result
from clipset.features.config import ImportConfig

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
    common: Seeded = SEEDED,
) -> None:
    """Make a store of existing features: one file (npy, npz, pt, h5) for each video.

    A file holds an array (V, D), one row for each clip; arrays `times` and `boxes` may give their
    coordinates. Random and regular clips are the same rows.

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
        Fraction of the labelled videos used for testing, where no split is given.
    """
    from clipset.data.catalog import read_catalog
    from clipset.data.splits import assign_splits
    from clipset.features.importers import catalog_of_features, import_features

    listed = read_catalog(catalog) if catalog else catalog_of_features(features)
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
