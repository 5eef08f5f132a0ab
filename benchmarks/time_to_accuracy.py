"""Seconds of pre-training until `recommended` is as good as `official` at its end.

Both presets train on the same stored features and are scored by the same probes, SCALE linear and
SCALE fine-tuned, on validation groups that neither training has used. Probes see a tenth of the
labels, drawn three times: with all of them both presets are right about nearly every video.
`official` is trained as published (200 epochs). `recommended` is trained from scratch for a growing
number of epochs until it reaches each score of `official`. Seconds are those of the epochs, without
start-up and evaluation.

    python benchmarks/time_to_accuracy.py --catalog lsa64/labels.csv --classes 20
"""

from __future__ import annotations

import json
import os
import tempfile
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

PROBES = ("scale_linear", "finetune")
EPOCHS = (2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64, 128, 256)
LABEL_FRACTION, LABEL_DRAWS = 0.1, 3


def train(store: FeatureStore, out: Path, preset: str, seed: int, **settings: Any) -> float:
    """Pre-train, and return the seconds of all epochs."""
    clipset.pretrain(store, out, preset=preset, seed=seed, **settings)
    lines = (out / "metrics.jsonl").read_text().splitlines()
    return sum(float(json.loads(line)["seconds"]) for line in lines)


def score(store: FeatureStore, model: Path, probes: tuple[str, ...], seed: int) -> dict[str, float]:
    """The accuracy of each probe on the validation groups."""
    results = clipset.evaluate(
        store, model, probes=probes, num_seeds=LABEL_DRAWS, label_fraction=LABEL_FRACTION, seed=seed
    )
    return {result.probe: result.value for result in results}


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
        end = Path(scratch) / "official"
        official_seconds = train(store, end, "official", options.seed)
        targets = score(store, end, PROBES, options.seed)
        print(f"official: {official_seconds:.0f} s, {targets}", flush=True)
        reached: dict[str, float] = {}
        curve = []
        for epochs in EPOCHS:
            model = Path(scratch) / f"recommended-{epochs}"
            seconds = train(store, model, "recommended", options.seed, epochs=epochs)
            pending = tuple(
                name for name, probe in zip(PROBES, targets, strict=True) if probe not in reached
            )
            scores = score(store, model, pending, options.seed)
            curve.append({"epochs": epochs, "seconds": seconds, **scores})
            print(f"recommended, {epochs} epochs: {seconds:.1f} s, {scores}", flush=True)
            for probe, value in scores.items():
                if value >= targets[probe]:
                    reached[probe] = seconds
            if len(reached) == len(targets):
                break
    write_record(
        options.out,
        "time_to_accuracy",
        ratios={
            f"official_over_recommended_{probe}": official_seconds / seconds
            for probe, seconds in reached.items()
        },
        figures={
            "videos": len(videos), "label_fraction": LABEL_FRACTION,
            "official_seconds": official_seconds,
            "official_scores": targets, "recommended": curve,
        },
    )  # fmt: skip


if __name__ == "__main__":
    main()
