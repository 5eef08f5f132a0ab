"""Rows that train a head on frozen features: linear, MLP, attentive; the whole grid at once."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from functools import partial

import torch
from jaxtyping import Float
from torch import Tensor

from clipset.probes.heads import HeadGrid, HeadInputs, HeadSetting, fit_heads, list_settings
from clipset.probes.inputs import clip_inputs, placed, placed_inputs, set_inputs
from clipset.probes.job import Job, Outcome
from clipset.probes.present import Present
from clipset.probes.results import Row
from clipset.probes.selection import Parts, Score, best_of, count_epochs, rungs, score, survivors
from clipset.probes.stacks import AttentiveStack, LinearStack, MakeStack, MLPStack
from clipset.representation import Part, encode_clips
from clipset.sets.clips import VideoClips

Represent = Callable[[VideoClips], Float[Tensor, "M W R"]]


def train_heads(job: Job, row: Row) -> Outcome:
    """A grid of heads at once, the best one again on all training videos with each seed."""
    config, parts = job.config.fit, job.divide()
    make, inputs, represent = _stack(job, row), _inputs(job, row), _represent(job, row)
    epochs = count_epochs(len(job.problem.train), config, config.head_steps)
    settings = list_settings(config)
    chosen, best = settings[len(settings) // 2], epochs
    if parts.can_choose:
        check, there, truth = _to_choose_by(job, parts, inputs, represent)
        chosen, best = choose_head(
            make, inputs, check, there, truth, job=job, parts=parts, epochs=epochs,
            halvings=0 if row[1] == "linear" else config.halvings,
        )  # fmt: skip
    videos = torch.arange(len(job.problem.train)) if config.refit else parts.learn
    test = represent(job.problem.test.clips)
    found = [
        fit_heads(
            make, inputs, (chosen,), config, videos=videos, outputs=job.problem.outputs,
            schedule=epochs, epochs=best, seed=seed,
        ).answer(test, job.problem.test.clips.present)[0]
        for seed in job.seeds
    ]  # fmt: skip
    return Outcome(
        predictions=found,
        seeds=job.seeds,
        selected_on=parts.selected_on,
        rate=chosen.rate,
        epochs=best,
        settings=asdict(chosen),
        tried=len(settings) if parts.can_choose else 1,
    )


def choose_head(
    make: MakeStack, inputs: HeadInputs, check: Float[Tensor, "M W R"],
    there: Present, truth: Tensor, *,
    job: Job, parts: Parts, epochs: int, halvings: int,
) -> tuple[HeadSetting, int]:  # fmt: skip
    """The point of the grid and the number of epochs that do best on the videos set aside."""
    settings = list_settings(job.config.fit)
    curves: dict[int, list[Score]] = {number: [] for number in range(len(settings))}
    stops = rungs(epochs, halvings)

    def note(grid: HeadGrid, epoch: int) -> None:
        found = grid.answer(check, there)
        for number, predicted in found.items():
            curves[number].append(score(predicted, truth))
        if epoch in stops:
            grid.keep(survivors(curves, found))

    fit_heads(
        make, inputs, settings, job.config.fit, videos=parts.learn, outputs=job.problem.outputs,
        schedule=epochs, epochs=epochs, seed=job.seeds[0], after_epoch=note,
    )  # fmt: skip
    number, best = best_of(curves)
    return settings[number], best


def _to_choose_by(
    job: Job, parts: Parts, inputs: HeadInputs, represent: Represent
) -> tuple[Float[Tensor, "M W R"], Present, Tensor]:
    """What the videos set aside look like, which of their clips are there, and what they show."""
    if parts.check is not None:
        there = inputs.regular_present
        kept = None if there is None else there[parts.check]
        return inputs.regular[parts.check], kept, inputs.wanted[parts.check]
    named = job.problem.validation
    assert named is not None  # only then is there no part of the training videos
    return represent(named.regular), named.regular.present, named.wanted


def _stack(job: Job, row: Row) -> MakeStack:
    if row[1] == "mlp":
        return partial(MLPStack, hidden=job.config.mlp_hidden)
    if row[1] == "attentive":
        return partial(AttentiveStack, queries=job.config.queries)
    return LinearStack


def _inputs(job: Job, row: Row) -> HeadInputs:
    train = job.problem.train
    if row[0] == "backbone":
        return placed_inputs(train) if row[1] == "attentive" else clip_inputs(train)
    part: Part = "token" if row[1] == "attentive" else "set"
    return set_inputs(train, job.trained_encoder(), job.config.fit, part, job.seeds[0])


def _represent(job: Job, row: Row) -> Represent:
    """What `_inputs` holds of regular clips, for other videos."""
    if row[0] == "backbone":
        return placed if row[1] == "attentive" else (lambda clips: clips.features)
    parts: tuple[Part, ...] = ("clip", "token" if row[1] == "attentive" else "set")
    return lambda clips: encode_clips(job.trained_encoder(), clips, parts)
