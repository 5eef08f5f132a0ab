"""Seconds of pre-training until `recommended` is as good as `official` at its end.

Both presets train on the same stored features and are scored by the same probes on validation
groups that no training has used: SCALE linear, and SCALE fine-tuned as in the paper (the
transformer alone, not mixed with clips in order). Probes see a tenth of the labels, drawn several
times: with all of them every training is right about nearly every video. The rows without
pre-training are scored, too: a target below them would say nothing.

`official` is trained as published (200 epochs), once with batches of any videos, as published, and
once with batches of one group, as `recommended` has by default; the better score of the two is the
target. `recommended` is trained from scratch for each number of epochs, and reaches a target with
the shortest training from which on all longer ones reach it. Seconds are those of the epochs,
without start-up and evaluation.

    python benchmarks/time_to_accuracy.py --catalog lsa64/labels.csv --classes 20
"""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")  # before torch is imported

from record import make_parser, write_record

import clipset
from clipset.data.catalog import read_catalog
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract
from clipset.features.store import FeatureStore, open_store
from clipset.recipe import load_settings

BASELINES = {"linear": "linear", "finetune": "transformer"}  # a SCALE row and the one without
PROBES = ("scale_linear", "finetune")
BATCHES = ("all", "group")  # of `official`; as published, and as `recommended` has by default
EPOCHS = (1, 2, 3, 5, 8, 13, 20, 32, 50, 80)
LABEL_FRACTION, LABEL_DRAWS = 0.1, 5


def train(
    store: FeatureStore, out: Path, preset: str, seed: int, **settings: Any
) -> dict[str, Any]:
    """Pre-train; the settings, the seconds of all epochs, and the accuracy of each probe."""
    clipset.pretrain(store, out, preset=preset, seed=seed, **settings)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    seconds = sum(float(json.loads(line)["seconds"]) for line in lines)
    training = {**settings, "seconds": seconds, **score(store, out, PROBES, seed)}
    print(f"{preset}: {training}", flush=True)
    return training


def score(
    store: FeatureStore, model: Path | None, probes: Iterable[str], seed: int
) -> dict[str, float]:
    """The accuracy of each probe on the validation groups."""
    results = clipset.evaluate(
        store, model, probes=tuple(probes), num_seeds=LABEL_DRAWS, seed=seed,
        label_fraction=LABEL_FRACTION, training={"ordered_weights": (0.0,)},
    )  # fmt: skip
    return {result.probe: result.value for result in results}


def seconds_to_reach(target: float, curve: list[dict[str, Any]], probe: str) -> float | None:
    """The seconds of the first training that reaches a score as all longer ones do."""
    seconds = None
    for point in reversed(curve):
        if point[probe] < target:
            break
        seconds = point["seconds"]
    return seconds


def main() -> None:
    """Train and score both presets, write the record."""
    parser = make_parser("time_to_accuracy", __doc__)
    parser.add_argument("--catalog", type=Path, required=True)
    parser.add_argument("--classes", type=int, help="only the first classes, by name")
    parser.add_argument("--validation", nargs="+", default=["signer07", "signer08"])
    parser.add_argument("--store", type=Path, help="folder of the features (temporary by default)")
    options = parser.parse_args()
    catalog = read_catalog(options.catalog)
    classes = set(catalog.classes[: options.classes])
    videos = [
        replace(video, split="test" if video.group in options.validation else "train")
        for video in catalog
        if video.split == "train" and video.label in classes
    ]
    catalog = catalog.only(videos)  # the test split of the catalog has no part in this
    with tempfile.TemporaryDirectory() as scratch:
        folder = options.store or Path(scratch) / "store"
        extract(catalog, folder, load_settings(ExtractConfig, "recommended"))
        store = open_store(folder, catalog)
        untrained = score(store, None, BASELINES.values(), options.seed)
        print(f"without pre-training: {untrained}", flush=True)
        models, seed = Path(scratch), options.seed
        official = [
            train(store, models / f"official-{name}", "official", seed, batch_from=name)
            for name in BATCHES
        ]
        curve = [
            train(store, models / f"recommended-{epochs}", "recommended", seed, epochs=epochs)
            for epochs in EPOCHS
        ]
    ratios = {}
    for probe in BASELINES:
        best = max(official, key=lambda training: training[probe])
        if reached := seconds_to_reach(best[probe], curve, probe):
            ratios[f"official_over_recommended_{probe}"] = best["seconds"] / reached
    write_record(
        options.out,
        "time_to_accuracy",
        ratios=ratios,
        figures={
            "videos": len(videos), "classes": len(classes), "seed": options.seed,
            "label_fraction": LABEL_FRACTION, "label_draws": LABEL_DRAWS,
            "without_pretraining": untrained, "official": official, "recommended": curve,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
