"""Rows that train a head on frozen features: linear, MLP, attentive; the whole grid at once."""

from __future__ import annotations

from dataclasses import asdict

from jaxtyping import Float, Int
from torch import Tensor

from clipset.evaluation.classifiers import HeadClassifier, rows_of, stack_of
from clipset.evaluation.heads import (
    HEAD_STEPS,
    HeadGrid,
    HeadInputs,
    HeadSetting,
    fit_heads,
    list_settings,
)
from clipset.evaluation.inputs import clip_inputs, placed_inputs, set_inputs
from clipset.evaluation.job import Job, Plan
from clipset.evaluation.present import ValidMask
from clipset.evaluation.results import ProbeKey
from clipset.evaluation.selection import (
    HALVINGS,
    Parts,
    Score,
    best_of,
    count_epochs,
    rungs,
    score,
    survivors,
)
from clipset.evaluation.stacks import MakeStack
from clipset.representation import VectorPart


def plan_heads(job: Job, row: ProbeKey) -> Plan:
    """A grid of heads at once; the best one is trained again."""
    config, parts = job.config.training, job.divide()
    make, inputs, encoder = stack_of(row, job.config), _inputs(job, row), job.encoder_for(row)
    epochs = count_epochs(len(job.task.train), config, HEAD_STEPS)
    settings = list_settings(config)
    chosen, best = settings[len(settings) // 2], epochs
    if parts.can_choose:
        check, there, truth = _to_choose_by(job, row, parts, inputs)
        chosen, best = choose_head(
            make, inputs, check, there, truth, job=job, parts=parts, epochs=epochs,
            halvings=0 if row.probe == "linear" else HALVINGS,
        )  # fmt: skip

    def fit(videos: Int[Tensor, " B"], seed: int) -> HeadClassifier:
        grid = fit_heads(
            make, inputs, (chosen,), config, videos=videos, outputs=job.task.outputs,
            schedule=epochs, epochs=best, seed=seed,
        )  # fmt: skip
        return HeadClassifier(row, grid.only_head(), encoder, job.config)

    return Plan(
        fit=fit,
        parts=parts,
        selected_on=parts.selected_on,
        rate=chosen.learning_rate,
        epochs=best,
        settings=asdict(chosen),
        tried=len(settings) if parts.can_choose else 1,
    )


def choose_head(
    make: MakeStack, inputs: HeadInputs, check: Float[Tensor, "M W R"],
    there: ValidMask, truth: Tensor, *,
    job: Job, parts: Parts, epochs: int, halvings: int,
) -> tuple[HeadSetting, int]:  # fmt: skip
    """The point of the grid and the number of epochs that do best on the videos set aside."""
    settings = list_settings(job.config.training)
    curves: dict[int, list[Score]] = {number: [] for number in range(len(settings))}
    stops = rungs(epochs, halvings)

    def note(grid: HeadGrid, epoch: int) -> None:
        found = grid.answer(check, there)
        for number, predicted in found.items():
            curves[number].append(score(predicted, truth))
        if epoch in stops:
            grid.keep(survivors(curves, found))

    fit_heads(
        make, inputs, settings, job.config.training, videos=parts.learn, outputs=job.task.outputs,
        schedule=epochs, epochs=epochs, seed=job.seeds[0], after_epoch=note,
    )  # fmt: skip
    number, best = best_of(curves, first=1 if job.config.training.early_stopping else epochs)
    return settings[number], best


def _to_choose_by(
    job: Job, row: ProbeKey, parts: Parts, inputs: HeadInputs
) -> tuple[Float[Tensor, "M W R"], ValidMask, Tensor]:
    """What the videos set aside look like, which of their clips are there, and what they show."""
    if parts.check is not None:
        there = inputs.regular_valid
        kept = None if there is None else there[parts.check]
        return inputs.regular[parts.check], kept, inputs.wanted[parts.check]
    named = job.task.validation
    assert named is not None  # only then is there no part of the training videos
    rows = rows_of(row, named.regular, job.encoder_for(row))
    return rows, named.regular.valid, named.wanted


def _inputs(job: Job, row: ProbeKey) -> HeadInputs:
    train, encoder = job.task.train, job.encoder_for(row)
    if encoder is None:
        return placed_inputs(train) if row.probe == "attentive" else clip_inputs(train)
    part: VectorPart = "token" if row.probe == "attentive" else "set"
    return set_inputs(train, encoder, job.config.training, part, job.seeds[0])
