"""Retrieval by label: each test video is a query, and the training videos are ranked by cosine.

A training video is relevant if it has the label of the query. The vectors are those of k-NN by
default: the mean over clips, and the time course, of the backbone's features alone and next to the
model's tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clipset.evaluation.results import RetrievalResult
from clipset.evaluation.statistics import interval
from clipset.probes.inputs import CHUNK_SIZE, VideoInputs, set_token_weight
from clipset.probes.task import EvaluationTask
from clipset.training.checkpoint import ScaleModel

RANKS = (1, 5, 10, 20)
MAX_QUERIES = 2000  # test videos; of more, evenly spaced ones
AVERAGE_PRECISION = "average precision"


@torch.inference_mode()
def score_retrieval(
    task: EvaluationTask, models: Sequence[ScaleModel] = ()
) -> list[RetrievalResult]:
    """Mean average precision and recall@k of each kind of vector; none of targets.

    Those of the models are means over all models.
    """
    if task.is_regression:
        return []
    queries = torch.arange(len(task.test))
    if len(queries) > MAX_QUERIES:
        queries = torch.linspace(0, len(queries) - 1, MAX_QUERIES).round().long()
    groups = [task.test.groups[int(query)] for query in queries] if task.test.groups else ()
    results = []
    for has_course in (False, True):
        by_features: dict[str, Sequence[ScaleModel | None]] = {"backbone": [None], "scale": models}
        for features, own_models in by_features.items():
            runs = [_score_vectors(task, queries, model, has_course) for model in own_models]
            if not runs:
                continue
            values = {name: np.stack([run[name] for run in runs]) for name in runs[0]}  # (S, M)
            precision = values.pop(AVERAGE_PRECISION)
            low, high = interval(precision, tuple(groups))
            results.append(
                RetrievalResult(
                    features=features,
                    vectors="time_course" if has_course else "mean",
                    mean_average_precision=float(precision.mean()),
                    interval=(max(low, 0.0), min(high, 1.0)),
                    recall={rank: float(correct.mean()) for rank, correct in values.items()},
                    n=len(queries),
                    num_train=len(task.train),
                    split=task.split,
                    num_pretrainings=None if features == "backbone" else len(models),
                )
            )
    return results


def _score_vectors(
    task: EvaluationTask,
    queries: Int[Tensor, " M"],
    model: ScaleModel | None,
    has_course: bool,
) -> dict[str, Float[np.ndarray, " M"]]:
    """The average precision and the recall at each rank of every query."""
    inputs = VideoInputs(None if model is None else model.encoder, has_course=has_course)
    clips = task.train.regular
    if has_course:
        train = inputs.all_vectors(clips)
    else:
        train = inputs.balanced_vectors(clips, set_token_weight(model))
    test = inputs.all_vectors(task.test.clips.select(queries))
    chunks = []
    for chunk in torch.arange(len(queries)).split(CHUNK_SIZE):
        order = rank_vectors(train, test[chunk].float())  # (B, N)
        relevant = task.test.match(queries[chunk], task.train.classes[order])
        chunks.append(score_rankings(relevant))
    return {name: np.concatenate([own[name] for own in chunks]) for name in chunks[0]}


def rank_vectors(
    vectors: Float[Tensor, "N R"], queries: Float[Tensor, "B R"]
) -> Int[Tensor, "B N"]:
    """The indices of all vectors by their cosine to each query, the largest first."""
    queries = F.normalize(queries, dim=1)
    blocks = (F.normalize(block.float(), dim=1) for block in vectors.split(CHUNK_SIZE))
    cosines = torch.cat([queries @ block.T for block in blocks], dim=1)
    return cosines.argsort(dim=1, descending=True, stable=True)


def score_rankings(relevant: Bool[Tensor, "B N"]) -> dict[str, Float[np.ndarray, " B"]]:
    """Average precision, and whether a relevant video is among the first k (recall@k)."""
    ranks = torch.arange(1, relevant.shape[1] + 1)
    precision = relevant.cumsum(dim=1) / ranks  # (B, N)
    total = (precision * relevant).sum(dim=1, dtype=torch.float64)
    scores = {AVERAGE_PRECISION: total / relevant.sum(dim=1).clamp_min(1)}
    for rank in RANKS:
        if rank <= relevant.shape[1]:
            scores[str(rank)] = relevant[:, :rank].any(dim=1).double()
    return {name: values.numpy() for name, values in scores.items()}
