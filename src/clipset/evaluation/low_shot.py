"""Low-shot curves: the same probes with more and more training labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from clipset.data.catalog import Catalog
from clipset.data.splits import keep_fraction
from clipset.errors import ProbeError
from clipset.evaluation.results import LowShotCurve, LowShotPoint, ProbeResult
from clipset.evaluation.suite import run_suite
from clipset.features.store import FeatureStore
from clipset.probes.config import EvaluateConfig, ProbeName
from clipset.probes.task import make_task, pretraining_setup
from clipset.progress import log
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig

FRACTIONS = (0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1.0)
PROBES: tuple[ProbeName, ...] = ("linear", "scale_linear", "transformer", "finetune")


def run_low_shot(
    store: FeatureStore,
    catalog: Catalog | None,
    model: ScaleModel | None,
    config: EvaluateConfig | None = None,
    *,
    seed: int = 0,
    fractions: tuple[float, ...] = FRACTIONS,
    probes: Sequence[ProbeName] | None = None,
    training: PretrainConfig | None = None,
) -> list[LowShotCurve]:
    """Run probes on nested subsets of the training videos, always with the same test videos.

    A fraction that adds no video to the one before (each class has at least one) is skipped. The
    pre-trained model stays the same: it has learned from no label.
    """
    readable, catalog = set(store.ids), catalog or store.catalog
    catalog = catalog.only(video for video in catalog if video.id in readable)
    results: dict[float, list[ProbeResult]] = {}
    num_videos: dict[float, int] = {}
    for fraction, subset in nested_subsets(catalog, fractions, seed).items():
        task = make_task(store, subset, None if model is None else model.config, training)
        if training is not None:  # joint pre-training also sees the unlabelled videos
            task = replace(task, pretraining=pretraining_setup(store, catalog, training))
        log(f"{fraction:.0%} of the labels: {len(task.train)} training videos")
        results[fraction] = run_suite(
            task, model, config, seed=seed, probes=probes or PROBES
        ).results
        num_videos[fraction] = len(task.train)
    curves = []
    for probe_index, first_result in enumerate(next(iter(results.values()))):
        points = tuple(
            LowShotPoint(
                fraction=fraction,
                videos=num_videos[fraction],
                value=probe_results[probe_index].value,
                interval=probe_results[probe_index].interval,
                selected_on=probe_results[probe_index].selected_on,
            )
            for fraction, probe_results in results.items()
        )
        curves.append(
            LowShotCurve(
                features=first_result.features,
                probe=first_result.probe,
                metric=first_result.metric,
                split=first_result.split,
                n=first_result.n,
                points=points,
            )
        )
    return curves


def nested_subsets(
    catalog: Catalog, fractions: tuple[float, ...], seed: int
) -> dict[float, Catalog]:
    """The catalog with each fraction of its train split; each subset is part of the next."""
    if not fractions or sorted(set(fractions)) != list(fractions):
        raise ProbeError(f"fractions of the labels must be in rising order, got {fractions}")
    subsets: dict[float, Catalog] = {}
    for fraction in fractions:
        # The same seed shuffles each class in the same way, and a fraction is its beginning.
        subset = keep_fraction(catalog, fraction, generator=np.random.default_rng(seed))
        if not subsets or len(subset) > len(list(subsets.values())[-1]):
            subsets[fraction] = subset
    return subsets
