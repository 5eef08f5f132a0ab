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
from typing import Any

from clipset.config import fingerprint
from clipset.data.tasks import Task
from clipset.probes.config import EvaluateConfig
from clipset.progress import is_quiet, log, set_later_work
from clipset.recipe import Recipe
from clipset.runs import RunFolder, read_run

TRANSFORMERS = ("transformer", "finetune")
HEAD_COSTS = {  # of a head's grid, or of one training, in that of a transformer
    "linear": 0.05,
    "scale_linear": 0.05,
    "mlp": 1.2,
    "attentive": 1.2,
    "scale_attentive": 1.2,
}
JOINT_COST = 3.0  # of a step of fine-tuning with joint pre-training
REPORT_SECONDS, REPORT_SECONDS_PER_VIDEO, MOST_THUMBNAILS = 5.0, 0.02, 800
SAFETY = 0.85  # part of the limit that is planned: speeds vary


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSize:
    """What the time of a run depends on beside its settings and the machine."""

    videos: int
    train_videos: int
    dim: int
    tasks: int

    @classmethod
    def of(cls, tasks: Sequence[Task], dim: int, recipe: Recipe) -> DataSize:
        """The size of some tasks on features of a width."""
        train_counts = []
        for task in tasks:
            catalog = task.catalog
            uses_all = recipe.pretrain.ssl_split == "all" or "train" not in catalog.splits
            train_counts.append(sum(uses_all or video.split == "train" for video in catalog))
        videos = max(len(task.catalog) for task in tasks)
        return cls(videos=videos, train_videos=max(*train_counts, 2), dim=dim, tasks=len(tasks))


class RunClock:
    """The time that a run takes, estimated when it is first needed, and its limit."""

    def __init__(
        self,
        recipe: Recipe,
        size: DataSize,
        device: str,
        *,
        started_at: float,
        minutes: float | None,
    ) -> None:
        self.recipe, self.size, self.device = recipe, size, device
        self.started_at, self.minutes = started_at, minutes
        self.num_begun = 0  # tasks

    @cached_property
    def seconds(self) -> dict[str, float]:
        """The estimated seconds of each step after extraction, for all tasks together."""
        return estimate_steps(self.recipe, self.size, self.device)

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

    def limit(self, folder: RunFolder) -> Recipe:
        """The recipe, cut to the limit; a run that is resumed keeps what was decided before."""
        plan = folder.content["time_limit"]
        if self.minutes is None:
            plan = {}
        elif plan.get("fingerprint") != self.fingerprint:
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
        return fingerprint(self.minutes, self.recipe.pretrain, self.recipe.evaluate, self.size)

    def _cut(self, seconds_left: float) -> dict[str, Any]:
        """The epochs that fit into the rest of the limit, and what that cuts."""
        seconds, recipe = self.seconds, self.recipe
        usable_seconds = SAFETY * seconds_left - seconds["embed"] - seconds["report"]
        fraction = max(usable_seconds, 0.0) / max(seconds["pretrain"] + seconds["evaluate"], 1e-9)
        if fraction >= 1:
            return {"cut": ""}
        num_videos = self.size.train_videos
        planned_epochs = count_pretrain_epochs(recipe, num_videos)
        planned_probes = count_probe_epochs(recipe.evaluate, num_videos)
        epochs = max(1, math.floor(planned_epochs * fraction))
        probe_epochs = max(1, math.floor(planned_probes * fraction))
        late = "extraction alone took longer; " if seconds_left <= 0 else ""
        return {
            "pretrain_epochs": epochs,
            "probe_epochs": probe_epochs,
            "cut": f"{late}pre-training has {epochs} epochs instead of up to {planned_epochs}, "
            f"probes have {probe_epochs} instead of up to {planned_probes}",
        }


def _apply(plan: Mapping[str, Any], recipe: Recipe) -> Recipe:
    """A recipe with the epochs of a plan."""
    training = replace(recipe.evaluate.training, epochs=plan.get("probe_epochs", 1))
    return replace(
        recipe,
        pretrain=replace(recipe.pretrain, epochs=plan.get("pretrain_epochs", 1)),
        evaluate=replace(recipe.evaluate, training=training),
    )


def estimate_steps(
    recipe: Recipe, size: DataSize, device: str, samples_per_second: float | None = None
) -> dict[str, float]:
    """Seconds of the steps after extraction; the speed of training is measured if not given."""
    from clipset.training.speed import measure_training

    config, num_videos = recipe.pretrain, size.train_videos
    if samples_per_second is not None:
        sample_seconds = 1 / samples_per_second
    else:
        sample_seconds = measure_training(size.dim, config, num_videos=num_videos, device=device)
    num_epochs = count_pretrain_epochs(recipe, num_videos)
    num_thumbnails = min(size.videos, MOST_THUMBNAILS)
    return {
        "pretrain": num_epochs * num_videos * sample_seconds * config.seeds,
        "embed": size.videos * sample_seconds * size.tasks,
        "evaluate": count_probe_sets(recipe, num_videos) * sample_seconds / 2 * size.tasks,
        "report": (REPORT_SECONDS + REPORT_SECONDS_PER_VIDEO * num_thumbnails) * size.tasks,
    }


def count_probe_sets(recipe: Recipe, num_videos: int) -> float:
    """The sets of clips that all probes are trained on, in the cost of those of a transformer."""
    config, total_sets = recipe.evaluate, 0.0
    for probe_name in config.probes:
        is_scale = probe_name == "finetune" or probe_name.startswith("scale_")
        num_searches = recipe.pretrain.seeds if is_scale else 1
        num_fits = num_searches if num_searches > 1 else config.num_seeds
        if config.label_fraction is not None and config.label_selection == "random":
            num_searches = num_fits
        sets = count_probe_epochs(config, num_videos) * num_videos * (config.label_fraction or 1.0)
        if probe_name in TRANSFORMERS:
            training = config.training
            grid_size = math.prod(
                len(values)
                for values in (
                    training.learning_rates, training.weight_decays, training.encoder_lr_scales,
                    training.batch_sizes, training.optimizers, training.batch_norm,
                )
            )  # fmt: skip
            is_joint = probe_name == "finetune" and training.joint_weight > 0
            cost = (grid_size / 2 * num_searches + num_fits) * (JOINT_COST if is_joint else 1.0)
        else:
            cost = HEAD_COSTS.get(probe_name, 0.0) * (num_searches + num_fits)
        total_sets += cost * sets
    return total_sets


def count_pretrain_epochs(recipe: Recipe, num_videos: int) -> int:
    """The epochs of pre-training, at most."""
    from clipset.training.budget import count_max_epochs

    steps_per_epoch = math.ceil(num_videos / recipe.pretrain.batch_size)
    return recipe.pretrain.epochs or count_max_epochs(num_videos, steps_per_epoch)


def count_probe_epochs(config: EvaluateConfig, num_videos: int) -> int:
    """The epochs of a transformer, at most."""
    from clipset.probes.search import count_epochs

    return count_epochs(num_videos, config.training, config.training.max_steps)
