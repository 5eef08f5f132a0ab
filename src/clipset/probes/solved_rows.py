"""Rows that solve a linear classifier of whole videos: clips in order, logistic regression."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor

from clipset.probes.job import Job, Outcome
from clipset.probes.results import Row
from clipset.probes.selection import Parts
from clipset.probes.solve import choose_logistic, choose_ridge, solve_logistic, solve_ridge
from clipset.representation import encode_clips
from clipset.sets.clips import VideoClips, mean_over_clips


def solve_classifier(job: Job, row: Row) -> Outcome:
    """A linear classifier of the whole video, solved for the penalty chosen on videos set aside."""
    config, train, parts = job.config.fit, job.problem.train, job.divide()
    ordered = row[1] == "ordered"
    vectors = _vectors(job, row, train.regular)
    ridge = ordered or job.numbers
    penalty, sharpness = config.penalties[len(config.penalties) // 2], 10.0
    outputs = job.problem.outputs
    if parts.can_choose:
        check, truth = _vectors_to_choose_by(job, row, parts, vectors)
        pair = (vectors[parts.learn], train.wanted[parts.learn], check, truth)
        if ridge:
            penalty, sharpness = choose_ridge(*pair, outputs=outputs, penalties=config.penalties)
        else:
            penalty = choose_logistic(*pair, outputs=outputs, penalties=config.penalties)
    videos = torch.arange(len(train)) if config.refit else parts.learn
    known, wanted = vectors[videos], train.wanted[videos]
    queries = _vectors(job, row, job.problem.test.clips)
    settings: dict[str, Any] = {"penalty": penalty, "solver": "ridge" if ridge else "logistic"}
    if ridge:
        found = solve_ridge(
            known, wanted, queries, outputs=outputs, penalty=penalty, sharpness=sharpness
        )
    else:
        found, converged = solve_logistic(known, wanted, queries, outputs=outputs, penalty=penalty)
        settings["converged"] = converged
    return Outcome(
        predictions=[found],
        seeds=job.seeds[:1],
        selected_on=parts.selected_on,
        settings=settings,
        tried=len(config.penalties) if parts.can_choose else 1,
    )


def _vectors(job: Job, row: Row, clips: VideoClips) -> Float[Tensor, "N R"]:
    """One vector for each video: its regular clips in order, or their mean."""
    if row[1] == "ordered":
        return clips.features.flatten(1)
    if row[0] == "backbone":
        return mean_over_clips(clips.features, clips.present)
    return mean_over_clips(encode_clips(job.trained_encoder(), clips), clips.present)


def _vectors_to_choose_by(
    job: Job, row: Row, parts: Parts, vectors: Float[Tensor, "N R"]
) -> tuple[Float[Tensor, "M R"], Tensor]:
    if parts.check is not None:
        return vectors[parts.check], job.problem.train.wanted[parts.check]
    named = job.problem.validation
    assert named is not None  # only then is there no part of the training videos
    return _vectors(job, row, named.regular), named.wanted
