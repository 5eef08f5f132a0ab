"""The time of a run: an estimate of each step, and what is cut so that a limit holds.

Extraction is never cut. What is left of the limit is divided between pre-training and probes in
proportion to what they would take; both then get the epochs that fit.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from clipset.config import fingerprint
from clipset.data.catalog import Video
from clipset.data.tasks import Task
from clipset.features.store import FeatureStore, open_store
from clipset.probes.config import EvaluateConfig
from clipset.progress import is_quiet, log, set_later_work
from clipset.recipe import Recipe
from clipset.runs import RunFolder, read_run
from clipset.text import counted
from clipset.training.budget import (
    MAX_HELD_OUT,
    count_max_epochs,
    hold_out,
    is_check_due,
)
from clipset.training.config import PretrainConfig

if TYPE_CHECKING:
    from clipset.training.speed import TrainingSpeed

REPORT_SECONDS, REPORT_SECONDS_PER_VIDEO, MOST_THUMBNAILS = 1.0, 0.006, 800
FORWARD = 1 / 3  # of a training step: the loss alone
ENCODE = 1 / 6  # of a training step: one set of two, without gradients
SAFETY = 0.85  # part of the limit that is planned: speeds vary


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """What the time of a run depends on beside its settings and the machine.

    `group_sizes` are the videos that are trained on, by the groups that batches are drawn from.
    `similar`: batches are of similar videos, if there are enough. `undecided`: the features will
    decide that; until then, `similar` is what takes longer.
    """

    videos: int
    group_sizes: tuple[int, ...]
    held_out: int
    labelled: int
    classes: int
    dim: int
    regular_clips: int
    tasks: int
    trainings: int
    similar: bool = False
    undecided: bool = False

    @classmethod
    def of(cls, tasks: Sequence[Task], dim: int, recipe: Recipe, *, regular_clips: int) -> DataSize:
        """The size of some tasks on features of a width."""
        from clipset.training.batches import group_batches

        config = recipe.pretrain
        by_task = []
        for task in tasks:
            splits = task.catalog.splits if config.ssl_split == "train" else ()
            by_task.append([v for v in task.catalog if "train" not in splits or v.split == "train"])
        members = max(by_task, key=len)
        choice = group_batches(members, config).groups if len(members) > 1 else None
        groups = np.zeros(len(members), int) if choice is None else choice.numpy()
        similar = _are_similar(members, config)
        held_out = hold_out(groups, 0) if config.epochs is None and len(groups) else groups[:0]
        trained = np.delete(groups, held_out)
        labelled = [
            [v for v in task.catalog if v.split == "train" and (v.label or v.target) is not None]
            for task in tasks
        ]
        return cls(
            videos=max(len(task.catalog) for task in tasks),
            group_sizes=tuple(np.unique(trained, return_counts=True)[1].tolist()) or (2,),
            held_out=len(held_out),
            labelled=max(map(len, labelled)),
            classes=max(len({v.label for v in own if v.label is not None}) for own in labelled),
            dim=dim,
            regular_clips=max(regular_clips, 1),
            tasks=len(tasks),
            trainings=len({frozenset(v.id for v in own) for own in by_task}),
            similar=config.epochs is not None if similar is None else similar,
            undecided=similar is None,
        )

    @property
    def train_videos(self) -> int:
        """The videos of an epoch of pre-training."""
        return sum(self.group_sizes)

    def count_batches(self, batch_size: int) -> int:
        """The batches of an epoch of pre-training."""
        sizes = self.group_sizes
        if self.similar:
            sizes = (-(-self.train_videos // self.num_clusters),) * self.num_clusters
        return sum(-(-size // batch_size) for size in sizes)

    @property
    def num_clusters(self) -> int:
        """The clusters of similar videos, at most; 1 if there are too few videos for several."""
        from clipset.training.similar import CLUSTER_SIZE, MAX_CLUSTERS

        num_videos = self.train_videos + self.held_out
        return max(1, min(num_videos // CLUSTER_SIZE, MAX_CLUSTERS))

    @property
    def needs_features(self) -> bool:
        """Whether only the features can tell how long pre-training takes."""
        return self.undecided and self.num_clusters > 1

    def decide(self, store: FeatureStore, config: PretrainConfig) -> DataSize:
        """The same size; the features in a store decide about batches if nothing else does."""
        from clipset.training.batches import choose_batches
        from clipset.training.pretrain import ssl_videos

        if not self.needs_features:
            return self
        choice = choose_batches(store, ssl_videos(store, config.ssl_split), config)
        return replace(self, similar=choice.groups is not None, undecided=False)

    def scale(self, factor: float) -> DataSize:
        """More or fewer videos of the same kind."""
        return replace(
            self,
            videos=round(factor * self.videos),
            group_sizes=tuple(max(1, round(factor * size)) for size in self.group_sizes),
            held_out=min(round(factor * self.held_out), max(self.held_out, MAX_HELD_OUT)),
            labelled=math.ceil(factor * self.labelled),
        )


class RunClock:
    """The time that a run takes, estimated when it is first needed, and its limit."""

    def __init__(
        self,
        recipe: Recipe,
        tasks: Sequence[Task],
        device: str,
        *,
        dim: int,
        regular_clips: int,
        started_at: float,
        minutes: float | None,
    ) -> None:
        self.recipe, self.tasks, self.device = recipe, tasks, device
        self.dim, self.regular_clips = dim, regular_clips
        self.started_at, self.minutes = started_at, minutes
        self.num_begun = 0  # tasks

    @cached_property
    def size(self) -> DataSize:
        """Not needed by a run that is finished already."""
        return DataSize.of(self.tasks, self.dim, self.recipe, regular_clips=self.regular_clips)

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The estimated seconds of each step after extraction, for all tasks together."""
        is_quick = self.minutes is None  # only the progress bar uses it
        return estimate_steps(self.recipe, self.size, self.device, quick=is_quick)

    @property
    def deadline(self) -> float | None:
        """When the last training must have begun (`time.perf_counter`)."""
        return None if self.minutes is None else self.started_at + 60 * SAFETY * self.minutes

    def begin(self, step: str) -> None:
        """A step begins: progress shows the time left for the whole run."""
        self.num_begun += step == "pretrain"
        if is_quiet() or (step == "report" and "seconds" not in self.__dict__):
            return  # nothing was estimated for a run that is finished already
        step_names = ["extract", *self.seconds]
        per_task = {name: value / self.size.tasks for name, value in self.seconds.items()}
        if step == "extract":
            later = sum(self.seconds.values())
        else:
            rest = (self.size.tasks - self.num_begun) * sum(per_task.values())
            later = rest + sum(per_task[name] for name in step_names[step_names.index(step) + 1 :])
        set_later_work(later)

    def limit(self, folder: RunFolder, store: FeatureStore) -> Recipe:
        """The recipe, cut to the limit; a run that is resumed keeps what was decided before."""
        plan = folder.content["time_limit"]
        if self.minutes is None:
            plan = {}
        elif plan.get("fingerprint") != self.fingerprint:
            self._decide(store)
            seconds_left = self.started_at + 60 * self.minutes - time.perf_counter()
            plan = {"fingerprint": self.fingerprint, **self._cut(seconds_left)}
        folder.content["time_limit"] = plan
        line = f"limit of {self.minutes:g} minutes: {plan['cut']}" if plan.get("cut") else ""
        folder.decide("time limit", line)
        if line:
            log(line)
            self.recipe = _apply(plan, self.recipe)
            self.__dict__.pop("seconds", None)  # of the shorter steps
        return self.recipe

    def recorded_recipe(self, folder: Path) -> Recipe:
        """The recipe, cut as an earlier run in the folder with the same limit has recorded it."""
        run_record = read_run(folder) if (folder / "run.json").is_file() else {}
        time_plan = run_record.get("time_limit", {})
        is_same = self.minutes is not None and time_plan.get("fingerprint") == self.fingerprint
        return _apply(time_plan, self.recipe) if is_same and time_plan.get("cut") else self.recipe

    @property
    def fingerprint(self) -> str:
        """What a limit is planned from, but for the speed of the machine."""
        catalogs = [task.catalog.fingerprint for task in self.tasks]
        settings = (self.recipe.pretrain, self.recipe.evaluate)
        return fingerprint(self.minutes, *settings, self.dim, self.regular_clips, catalogs)

    def _decide(self, store: FeatureStore) -> None:
        """The size of the run, now that its features are there."""
        if self.size.needs_features:
            first_task = open_store(store.folder, self.tasks[0].catalog)
            self.size = self.size.decide(first_task, self.recipe.pretrain)
            self.__dict__.pop("seconds", None)  # with other batches

    def _cut(self, seconds_left: float) -> dict[str, Any]:
        """The epochs that fit into the rest of the limit, and what that cuts."""
        seconds, recipe = self.seconds, self.recipe
        usable_seconds = SAFETY * seconds_left - seconds["embed"] - seconds["report"]
        fraction = max(usable_seconds, 0.0) / max(seconds["pretrain"] + seconds["evaluate"], 1e-9)
        if fraction >= 1:
            return {"cut": ""}
        planned_epochs = count_pretrain_epochs(recipe, self.size)
        planned_probes = count_probe_epochs(recipe.evaluate, max(self.size.labelled, 1))
        epochs = max(1, math.floor(planned_epochs * fraction))
        probe_epochs = max(1, math.floor(planned_probes * fraction))
        late = "extraction alone took longer; " if seconds_left <= 0 else ""
        return {
            "pretrain_epochs": epochs,
            "probe_epochs": probe_epochs,
            "cut": f"{late}pre-training has {counted(epochs, 'epoch')} instead of up to "
            f"{planned_epochs}, "
            f"probes have {probe_epochs} instead of up to {planned_probes}",
        }


def _are_similar(members: Sequence[Video], config: PretrainConfig) -> bool | None:
    """Whether batches are of similar videos (see `choose_batches`); None: the features decide."""
    from clipset.training.batches import are_groups_known
    from clipset.training.similar import are_labels_known

    if config.batch_from != "auto":
        return config.batch_from == "similar"
    return None if are_labels_known(members) and not are_groups_known(members) else False


def _apply(plan: Mapping[str, Any], recipe: Recipe) -> Recipe:
    """A recipe with the epochs of a plan."""
    training = replace(recipe.evaluate.training, epochs=plan.get("probe_epochs", 1))
    return replace(
        recipe,
        pretrain=replace(recipe.pretrain, epochs=plan.get("pretrain_epochs", 1)),
        evaluate=replace(recipe.evaluate, training=training),
    )


def estimate_steps(
    recipe: Recipe,
    size: DataSize,
    device: str,
    samples_per_second: float | None = None,
    *,
    quick: bool = False,
) -> dict[str, float]:
    """Seconds of the steps after extraction; the speed of training is measured if not given.

    `quick` measures no more than it must.
    """
    from clipset.planning.probe_speed import ProbeSize, estimate_probes
    from clipset.training.speed import TrainingSpeed, measure_training

    config = recipe.pretrain
    batch_size = math.ceil(size.train_videos / size.count_batches(config.batch_size))
    speed = measure_training(size.dim, config, batch_size=batch_size, device=device, quick=quick)
    slowness = 1.0  # of another machine
    if samples_per_second is not None:
        slowness = 1 / (samples_per_second * speed.video)
        speed = TrainingSpeed(video=1 / samples_per_second)
    probe_seconds = 0.0
    if size.labelled > 1 and size.classes != 1:
        probe_size = ProbeSize(
            train_videos=size.labelled,
            classes=size.classes,
            dim=size.dim,
            random_clips=2 * config.clips_per_set,
            regular_clips=size.regular_clips,
        )
        probe_seconds = slowness * estimate_probes(
            recipe.evaluate,
            probe_size,
            model=config.model,
            num_models=config.seeds,
            joint_seconds=speed.video / slowness,
            quick=quick,
        )
    num_thumbnails = min(size.videos, MOST_THUMBNAILS)
    return {
        "pretrain": _pretrain_seconds(recipe, size, speed) * config.seeds * size.trainings,
        "embed": size.videos * speed.video * size.tasks,
        "evaluate": probe_seconds * size.tasks,
        "report": (REPORT_SECONDS + REPORT_SECONDS_PER_VIDEO * num_thumbnails) * size.tasks,
    }


def _pretrain_seconds(recipe: Recipe, size: DataSize, speed: TrainingSpeed) -> float:
    """One pre-training: epochs, checks of the held-out loss, and validations."""
    num_epochs = count_pretrain_epochs(recipe, size)
    seconds = num_epochs * (size.train_videos * speed.video + speed.epoch)
    if size.held_out:
        num_checks = sum(is_check_due(epoch, num_epochs) for epoch in range(1, num_epochs + 1))
        seconds += num_checks * size.held_out * FORWARD * speed.video
    if interval := recipe.pretrain.validate_every:
        seconds += num_epochs / interval * size.labelled * ENCODE * speed.video
    return seconds


def count_pretrain_epochs(recipe: Recipe, size: DataSize) -> int:
    """The epochs of pre-training, at most."""
    num_batches = size.count_batches(recipe.pretrain.batch_size)
    return recipe.pretrain.epochs or count_max_epochs(size.train_videos, num_batches)


def count_probe_epochs(config: EvaluateConfig, num_videos: int) -> int:
    """The epochs of a transformer, at most."""
    from clipset.probes.search import count_epochs

    return count_epochs(num_videos, config.training, config.training.max_steps)
