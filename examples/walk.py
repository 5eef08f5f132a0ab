"""The whole method in library calls: from a folder of videos to scores and neighbours.

python examples/walk.py VIDEOS OUT
"""

import sys
from pathlib import Path

import numpy as np

from clipset.data.catalog import read_catalog
from clipset.data.splits import assign_splits
from clipset.evaluation.results import ProbeResult
from clipset.evaluation.suite import run_suite
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract
from clipset.features.store import open_store
from clipset.probes.config import EvaluateConfig
from clipset.probes.task import make_task
from clipset.representation import embed_store, nearest
from clipset.training.config import PretrainConfig
from clipset.training.pretrain import pretrain


def walk(
    videos: Path,
    out: Path,
    *,
    extraction: ExtractConfig | None = None,
    pretraining: PretrainConfig | None = None,
    probing: EvaluateConfig | None = None,
    seed: int = 0,
) -> list[ProbeResult]:
    """Learn from a folder of videos (its sub-folders are the labels) and print a small table."""
    catalog = assign_splits(read_catalog(videos), test_fraction=0.25, seed=seed)
    extract(catalog, out / "store", extraction)  # clips -> frozen backbone -> disk
    store = open_store(out / "store")
    model = pretrain(store, out / "model", pretraining, seed=seed)  # masked clips, set contrast

    task = make_task(store, model=model.config)
    results = run_suite(task, model, probing, seed=seed).results
    for result in results:
        low, high = result.interval
        row = f"{result.features} {result.probe}"
        print(f"{row:<20} {result.value:6.1%}  ({low:.1%} to {high:.1%}, {result.n} test videos)")

    table = embed_store(store, model.encoder)  # one vector for each regular clip of each video
    hits, scores = nearest(table.pooled, np.array([0]), 3)
    print(f"most like {table.video_ids[0]}:")
    for place, score in zip(hits[0], scores[0], strict=True):
        print(f"{score:6.2f}  {table.video_ids[place]}")
    return results


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/walk.py VIDEOS OUT")
    walk(Path(sys.argv[1]), Path(sys.argv[2]))
