"""How scores grow with the number of labels: the same probes on nested parts of the train split."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from clipset.data.catalog import Catalog
from clipset.data.splits import keep_fraction
from clipset.errors import ProbeError
from clipset.evaluation.config import EvaluateConfig
from clipset.evaluation.results import LowShotCurve, LowShotPoint, ProbeKey, ProbeResult
from clipset.evaluation.suite import run_probes
from clipset.evaluation.task import make_task, pretraining_on
from clipset.features.store import FeatureStore
from clipset.progress import say
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
CURVES = (
    ProbeKey("backbone", "linear"),
    ProbeKey("scale", "linear"),
    ProbeKey("backbone", "transformer"),
    ProbeKey("scale", "finetune"),
)  # each beside what it is compared with


def run_low_shot(
    store: FeatureStore,
    catalog: Catalog | None,
    model: ScaleModel | None,
    config: EvaluateConfig | None = None,
    *,
    seed: int = 0,
    fractions: tuple[float, ...] = FRACTIONS,
    rows: tuple[ProbeKey, ...] = CURVES,
    training: PretrainConfig | None = None,
) -> list[LowShotCurve]:
    """Run the probes on parts of the training videos, each part within the next one.

    A share that leaves the same videos as the one before (at least one of each class stays) is
    passed over. The pre-trained model stays as it is: it has seen no label.
    """
    catalog = catalog or store.catalog
    runs: dict[float, list[ProbeResult]] = {}
    videos: dict[float, int] = {}
    for fraction, part in nested_parts(catalog, fractions, seed).items():
        task = make_task(store, part, None if model is None else model.config, training)
        if training is not None:  # videos whose labels are left out are still there without them
            task = replace(task, pretraining=pretraining_on(store, catalog, training))
        say(f"{fraction:.0%} of the labels: {len(task.train)} training videos")
        runs[fraction] = run_probes(task, model, config, seed=seed, rows=rows)
        videos[fraction] = len(task.train)
    first = next(iter(runs.values()))
    return [
        LowShotCurve(
            features=row.features,
            probe=row.probe,
            metric=row.metric,
            split=row.split,
            n=row.n,
            points=tuple(
                LowShotPoint(
                    fraction=fraction,
                    videos=videos[fraction],
                    value=results[place].value,
                    interval=results[place].interval,
                    selected_on=results[place].selected_on,
                )
                for fraction, results in runs.items()
            ),
        )
        for place, row in enumerate(first)
    ]


def nested_parts(catalog: Catalog, fractions: tuple[float, ...], seed: int) -> dict[float, Catalog]:
    """For each share the catalog with so much of its train split; each within the next."""
    if not fractions or sorted(set(fractions)) != list(fractions):
        raise ProbeError(f"shares of the labels must be given in rising order, got {fractions}")
    parts: dict[float, Catalog] = {}
    for fraction in fractions:
        # The same seed draws the same order of each class, of which a share is the beginning.
        part = keep_fraction(catalog, fraction, generator=np.random.default_rng(seed))
        if not parts or len(part) > len(list(parts.values())[-1]):
            parts[fraction] = part
    return parts
