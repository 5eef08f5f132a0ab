"""Rows that solve a linear classifier of whole videos: clips in order, logistic regression."""

from __future__ import annotations

from typing import Any

from jaxtyping import Float, Int
from torch import Tensor

from clipset.evaluation.classifiers import SolvedClassifier, vectors_of
from clipset.evaluation.job import Job, Plan
from clipset.evaluation.results import Row
from clipset.evaluation.selection import Parts
from clipset.evaluation.solve import choose_logistic, choose_ridge, solve_logistic, solve_ridge


def plan_solved(job: Job, row: Row) -> Plan:
    """A linear classifier of the whole video, solved for the penalty chosen on videos set aside."""
    config, train, parts = job.config.fit, job.problem.train, job.divide()
    encoder = job.encoder_for(row)
    vectors = vectors_of(row, train.regular, encoder)
    ridge = row[1] == "ordered" or job.numbers
    penalty, sharpness = config.penalties[len(config.penalties) // 2], 10.0
    outputs = job.problem.outputs
    if parts.can_choose:
        check, truth = _vectors_to_choose_by(job, row, parts, vectors)
        pair = (vectors[parts.learn], train.wanted[parts.learn], check, truth)
        if ridge:
            penalty, sharpness = choose_ridge(*pair, outputs=outputs, penalties=config.penalties)
        else:
            penalty = choose_logistic(*pair, outputs=outputs, penalties=config.penalties)
    settings: dict[str, Any] = {"penalty": penalty, "solver": "ridge" if ridge else "logistic"}

    def fit(videos: Int[Tensor, " B"], seed: int) -> SolvedClassifier:  # noqa: ARG001
        known, wanted = vectors[videos], train.wanted[videos]
        if ridge:
            found = solve_ridge(
                known, wanted, outputs=outputs, penalty=penalty, sharpness=sharpness
            )
        else:
            found, settings["converged"] = solve_logistic(
                known, wanted, outputs=outputs, penalty=penalty
            )
        return SolvedClassifier(row, found, encoder)

    tried = len(config.penalties) if parts.can_choose else 1
    on = parts.selected_on
    return Plan(fit=fit, parts=parts, selected_on=on, repeats=False, settings=settings, tried=tried)


def _vectors_to_choose_by(
    job: Job, row: Row, parts: Parts, vectors: Float[Tensor, "N R"]
) -> tuple[Float[Tensor, "M R"], Tensor]:
    if parts.check is not None:
        return vectors[parts.check], job.problem.train.wanted[parts.check]
    named = job.problem.validation
    assert named is not None  # only then is there no part of the training videos
    return vectors_of(row, named.regular, job.encoder_for(row)), named.wanted
