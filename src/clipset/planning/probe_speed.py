"""How long the probes of an evaluation take here, measured on random features of a few videos."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch

from clipset.model.config import ModelConfig
from clipset.probes.base import Probe, ProbeSetup, TrainedProbe
from clipset.probes.config import EvaluateConfig
from clipset.probes.finetune import JOINT_BATCH_SIZE
from clipset.probes.registry import PROBES, make_probe
from clipset.probes.search import (
    VALIDATION_FRACTION,
    ValidationCurves,
    ValidationSplit,
    count_epochs,
)
from clipset.probes.task import EvaluationTask, HeldOut, LabelledVideos
from clipset.sets.batch import ClipBatch
from clipset.training.checkpoint import ScaleModel

MAX_VIDEOS = 512  # that are measured
NUM_CANDIDATES = 3  # that are trained together; the time of more follows
QUICK_CANDIDATES = 2
NUM_EPOCHS = 3  # that are trained; the first one is slower and does not count
QUICK_EPOCHS = 2
FINAL_EPOCHS = 0.35  # part of the epochs of a training after the search, on average: they are
# chosen, and a transformer is not trained if the clips in order have all the weight


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSize:
    """What the time of probes depends on, beside settings and machine."""

    train_videos: int
    classes: int  # 0: targets
    dim: int
    random_clips: int
    regular_clips: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSpeed:
    """Seconds for one training video: once, and of an epoch in which a grid is trained."""

    start: float
    epoch: float
    candidate: float

    def train(self, num_candidates: int) -> float:
        """An epoch of some candidates together."""
        return self.epoch + self.candidate * num_candidates


def estimate_probes(
    config: EvaluateConfig,
    size: ProbeSize,
    *,
    model: ModelConfig,
    num_models: int,
    joint_seconds: float,
    quick: bool = False,
) -> float:
    """The seconds of all probes of a task.

    `joint_seconds` are those of pre-training with one video. `quick` measures no more than it must.
    """
    has_joint = config.training.joint_weight > 0
    config = replace(config, training=replace(config.training, joint_weight=0.0))
    num_videos = math.ceil(size.train_videos * (config.label_fraction or 1.0))
    total, speeds = 0.0, dict[str, ProbeSpeed]()
    with torch.random.fork_rng():
        setup = make_setup(config, replace(size, train_videos=num_videos), model)
        for name in config.probes:
            num_searches = num_models if PROBES[name][0] == "scale" else 1
            num_fits = num_searches if num_searches > 1 else config.num_seeds
            if config.label_fraction is not None and config.label_selection == "random":
                num_searches = num_fits
            probe = make_probe(name, setup)
            if not isinstance(probe, TrainedProbe):
                per_video = time_closed_form(probe) / len(setup.task.train)
                total += num_searches * num_videos * per_video
                continue
            kind = "transformer" if name == "finetune" else name  # the same architecture
            speed = speeds.setdefault(kind, speeds.get(kind) or measure_epochs(probe, quick))
            if name == "finetune" and has_joint:
                joint = joint_seconds * JOINT_BATCH_SIZE / min(config.training.batch_sizes)
                speed = replace(speed, candidate=speed.candidate + joint)
            total += num_videos * (
                num_searches * (speed.start + search_seconds(probe, speed, num_videos))
                + num_fits * fit_seconds(probe, speed, num_videos)
            )
    return total


def search_seconds(probe: TrainedProbe, speed: ProbeSpeed, num_videos: int) -> float:
    """The seconds of a search for one training video; others are kept for validation."""
    num_candidates, num_epochs = len(probe.search_space()), _count_epochs(probe, num_videos)
    if num_candidates == 1 and not probe.stops_early:
        return 0.0
    halving_epochs = ValidationCurves(1, num_epochs, probe.num_halvings).halving_epochs
    seconds = 0.0
    for epoch in range(1, num_epochs + 1):
        seconds += speed.train(num_candidates)
        if epoch in halving_epochs:
            num_candidates = -(-num_candidates // 2)
    return seconds * (1 - VALIDATION_FRACTION)


def fit_seconds(probe: TrainedProbe, speed: ProbeSpeed, num_videos: int) -> float:
    """The seconds of a training with the selected settings for one training video."""
    part = FINAL_EPOCHS if probe.stops_early else 1.0
    return part * _count_epochs(probe, num_videos) * speed.train(1)


def _count_epochs(probe: TrainedProbe, num_videos: int) -> int:
    training = probe.setup.config.training
    return count_epochs(num_videos, training, max(training.max_steps, probe.min_steps))


def make_setup(config: EvaluateConfig, size: ProbeSize, model: ModelConfig) -> ProbeSetup:
    """Random features and labels of some videos, and a model that was not trained."""
    num_videos = min(size.train_videos, MAX_VIDEOS, max(128, *config.training.batch_sizes))
    generator = torch.Generator().manual_seed(0)

    def make_clips(num_clips: int) -> ClipBatch:
        shape = (num_videos, num_clips)
        features = torch.randn((*shape, size.dim), generator=generator)
        return ClipBatch(features, torch.rand((*shape, model.box_dim), generator=generator))

    random, regular = make_clips(size.random_clips), make_clips(size.regular_clips)
    classes = torch.arange(num_videos) % max(size.classes, 1)
    targets = None if size.classes else torch.rand(num_videos, generator=generator)
    task = EvaluationTask(
        classes=tuple(map(str, range(size.classes))),
        train=LabelledVideos(random, regular, classes, (None,) * num_videos, targets),
        test=HeldOut(tuple(map(str, range(num_videos))), regular, classes, targets),
    )
    return ProbeSetup(task=task, model=ScaleModel(size.dim, model).eval(), config=config, seed=0)


def measure_epochs(probe: TrainedProbe, quick: bool) -> ProbeSpeed:
    """Train one candidate, then a few together, and score them as in a search."""
    train = probe.setup.task.train
    num_trained = len(train) - max(1, round(VALIDATION_FRACTION * len(train)))
    validation = train.select(torch.arange(num_trained, len(train)))
    split = ValidationSplit(torch.arange(num_trained), validation, "")
    candidates = probe.search_space()[: QUICK_CANDIDATES if quick else NUM_CANDIDATES]
    num_epochs = QUICK_EPOCHS if quick else NUM_EPOCHS
    started_at = time.perf_counter()
    probe.start({0: candidates[0]}, split)
    start = time.perf_counter() - started_at
    first = _epoch_seconds(probe, candidates[:1], split, num_epochs)
    more = 0.0
    if len(candidates) > 1:
        together = _epoch_seconds(probe, candidates, split, num_epochs)
        more = (together - first) / (len(candidates) - 1)
    candidate = min(max(more, 0.0), first)
    return ProbeSpeed(
        start=start / len(train),
        epoch=(first - candidate) / num_trained,
        candidate=candidate / num_trained,
    )


def _epoch_seconds(
    probe: TrainedProbe, candidates: Sequence[Any], split: ValidationSplit, num_epochs: int
) -> float:
    trainings, seconds = probe.start(dict(enumerate(candidates)), split), []
    for _ in range(num_epochs):
        started_at = time.perf_counter()
        trainings.run_epoch()
        trainings.score()
        seconds.append(time.perf_counter() - started_at)
    return statistics.mean(seconds[1:])


def time_closed_form(probe: Probe) -> float:
    """The seconds of a probe without epochs."""
    started_at = time.perf_counter()
    probe.fit(probe.search(), torch.arange(len(probe.setup.task.train)), probe.setup.seed)
    return time.perf_counter() - started_at
