"""The row that solves a linear classifier of whole videos: clips in order."""

from __future__ import annotations

from jaxtyping import Float, Int
from torch import Tensor

from clipset.evaluation.classifiers import SolvedClassifier, vectors_of
from clipset.evaluation.job import Job, Plan
from clipset.evaluation.results import ProbeKey
from clipset.evaluation.selection import Parts
from clipset.evaluation.solve import PENALTIES, choose_ridge, solve_ridge


def plan_solved(job: Job, row: ProbeKey) -> Plan:
    """A linear classifier of the whole video, solved for the penalty chosen on videos set aside."""
    train, parts = job.task.train, job.divide()
    encoder = job.encoder_for(row)
    vectors = vectors_of(row, train.regular, encoder)
    penalty, sharpness = PENALTIES[len(PENALTIES) // 2], 10.0
    outputs = job.task.outputs
    if parts.can_choose:
        check, truth = _vectors_to_choose_by(job, row, parts, vectors)
        penalty, sharpness = choose_ridge(
            vectors[parts.learn], train.wanted[parts.learn], check, truth,
            outputs=outputs, penalties=PENALTIES,
        )  # fmt: skip

    def fit(videos: Int[Tensor, " B"], seed: int) -> SolvedClassifier:  # noqa: ARG001
        layer = solve_ridge(
            vectors[videos], train.wanted[videos],
            outputs=outputs, penalty=penalty, sharpness=sharpness,
        )  # fmt: skip
        return SolvedClassifier(row, layer, encoder)

    return Plan(
        fit=fit,
        parts=parts,
        selected_on=parts.selected_on,
        repeats=False,
        settings={"penalty": penalty, "solver": "ridge"},
        tried=len(PENALTIES) if parts.can_choose else 1,
    )


def _vectors_to_choose_by(
    job: Job, row: ProbeKey, parts: Parts, vectors: Float[Tensor, "N R"]
) -> tuple[Float[Tensor, "M R"], Tensor]:
    if parts.check is not None:
        return vectors[parts.check], job.task.train.wanted[parts.check]
    named = job.task.validation
    assert named is not None  # only then is there no part of the training videos
    return vectors_of(row, named.regular, job.encoder_for(row)), named.wanted
