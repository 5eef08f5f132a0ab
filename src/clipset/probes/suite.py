"""All probes of the paper on one store and one model, as records for results.json."""

from __future__ import annotations

import copy
import time
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clipset.errors import ProbeError
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.model.scale import ScaleModel, make_encoder
from clipset.probes.config import ProbeConfig
from clipset.probes.fit import Network, choose, fit, predict
from clipset.probes.knn import knn_probabilities
from clipset.probes.metrics import confusion, interval, per_class
from clipset.probes.networks import ClipProbe, SetProbe
from clipset.probes.problem import Problem
from clipset.progress import bar
from clipset.representation import encode_clips
from clipset.sets.clips import feature_statistics, mean_over_clips

Features = Literal["backbone", "scale"]
ProbeName = Literal["knn", "linear", "mlp", "transformer", "finetune"]
ROWS: tuple[tuple[Features, ProbeName], ...] = (
    ("backbone", "knn"),
    ("scale", "knn"),
    ("backbone", "linear"),
    ("scale", "linear"),
    ("backbone", "mlp"),
    ("backbone", "transformer"),
    ("scale", "finetune"),
)  # in the order of the paper's tables


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One row of the table, with what is needed to trust it."""

    features: Features
    probe: ProbeName
    metric: str
    value: float
    interval: tuple[float, float]
    n: int
    seeds: tuple[int, ...]
    selected_on: str
    split: str
    chance: float
    rate: float | None
    epochs: int | None
    seconds: float
    per_class: dict[str, float | None]
    confusion: dict[str, Any]


def run_probes(
    problem: Problem,
    model: ScaleModel | None,
    config: ProbeConfig | None = None,
    *,
    seed: int = 0,
    rows: tuple[tuple[Features, ProbeName], ...] = ROWS,
) -> list[ProbeResult]:
    """Run the rows of the table; without a model, only those on the backbone's features."""
    config = config or ProbeConfig()
    rows = tuple(row for row in rows if row[0] == "backbone" or model is not None)
    results = []
    with bar("probing", len(rows), "probes") as advance:
        for features, probe in rows:
            began = time.perf_counter()
            encoder = None if model is None else model.encoder
            config_of_model = ModelConfig() if model is None else model.config
            if probe == "knn":
                outcome = _knn(problem, encoder if features == "scale" else None, config)
            else:
                make = _network(probe, features, problem, encoder, config_of_model, config)
                tuned = probe in ("transformer", "finetune")
                rates = config.fit.rates if tuned else config.fit.head_rates
                outcome = _trained(problem, make, config, rates, seed)
            results.append(
                _result(features, probe, problem, outcome, seed, time.perf_counter() - began)
            )
            advance(note=f"{features} {probe} {results[-1].value:.1%}")
    return results


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outcome:
    """Probabilities of the test videos, once for each seed."""

    probabilities: list[Float[Tensor, "M C"]]
    seeds: tuple[int, ...]
    selected_on: str
    rate: float | None = None
    epochs: int | None = None


def _knn(problem: Problem, encoder: SetEncoder | None, config: ProbeConfig) -> _Outcome:
    train, test = problem.train.regular, problem.test.clips
    if encoder is None:  # like for like: the encoder standardises, too
        mean, std = feature_statistics(problem.train.random.only_present())
        bank, queries = (train.features - mean) / std, (test.features - mean) / std
    else:
        bank, queries = encode_clips(encoder, train), encode_clips(encoder, test)
    found = knn_probabilities(
        mean_over_clips(bank, train.present),
        problem.train.classes,
        mean_over_clips(queries, test.present),
        class_count=len(problem.classes),
        k=config.k,
    )
    return _Outcome(probabilities=[found], seeds=(0,), selected_on="nothing: k is fixed")


def _network(
    probe: ProbeName,
    features: Features,
    problem: Problem,
    encoder: SetEncoder | None,
    model: ModelConfig,
    config: ProbeConfig,
) -> Network:
    """A function that makes a fresh network for a row of the table."""
    dim = problem.train.random.features.shape[-1]
    classes = len(problem.classes)
    if (features, probe) == ("backbone", "linear"):
        return lambda: ClipProbe(dim, classes)
    if (features, probe) == ("backbone", "mlp"):
        hidden = config.mlp_hidden
        return lambda: ClipProbe(dim, classes, hidden=hidden, out=hidden // 4, dropout=0.1)
    if (features, probe) == ("backbone", "transformer"):
        return _from_scratch(problem, dim, classes, model)
    if features == "scale" and probe in ("linear", "finetune") and encoder is not None:
        frozen = probe == "linear"
        return lambda: SetProbe(copy.deepcopy(encoder), classes, frozen=frozen)
    raise ProbeError(f"there is no probe {probe!r} on {features!r} features")


def _from_scratch(problem: Problem, dim: int, classes: int, model: ModelConfig) -> Network:
    """The same architecture as the pre-trained one, from a random start."""
    statistics = feature_statistics(problem.train.random.only_present())

    def make() -> SetProbe:
        encoder = make_encoder(dim, model)
        encoder.standardise_by(*statistics)
        return SetProbe(encoder, classes, frozen=False)

    return make


def _trained(
    problem: Problem, make: Network, config: ProbeConfig, rates: tuple[float, ...], seed: int
) -> _Outcome:
    """Choose on validation videos, train again on all training videos with each seed, predict."""
    chosen = choose(make, problem.train, config.fit, rates=rates, seed=seed)
    seeds = tuple(range(seed, seed + config.seeds))
    probabilities = []
    for number in seeds:
        network = fit(
            make, problem.train, config.fit, rate=chosen.rate, epochs=chosen.epochs, seed=number
        )
        probabilities.append(predict(network, problem.test.clips))
    return _Outcome(
        probabilities=probabilities,
        seeds=seeds,
        selected_on=chosen.selected_on,
        rate=chosen.rate,
        epochs=chosen.epochs,
    )


def _result(
    features: Features,
    probe: ProbeName,
    problem: Problem,
    outcome: _Outcome,
    seed: int,
    seconds: float,
) -> ProbeResult:
    judged = np.stack([problem.test.judge(each) for each in outcome.probabilities])  # (S, M, 2)
    right = judged[..., 0] == judged[..., 1]  # (S, M)
    counts = np.sum([confusion(each, len(problem.classes)) for each in judged], axis=0)
    largest = torch.bincount(problem.train.classes).argmax().item()
    return ProbeResult(
        features=features,
        probe=probe,
        metric="top1",
        value=float(right.mean()),
        interval=interval(right, np.random.default_rng(seed)),
        n=right.shape[1],
        seeds=outcome.seeds,
        selected_on=outcome.selected_on,
        split=problem.split,
        chance=float((judged[0, :, 0] == largest).mean()),
        rate=outcome.rate,
        epochs=outcome.epochs,
        seconds=seconds,
        per_class=dict(zip(problem.classes, per_class(counts), strict=True)),
        confusion={"classes": list(problem.classes), "counts": counts.tolist()},
    )
