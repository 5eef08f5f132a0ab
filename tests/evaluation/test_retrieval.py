"""Retrieval by label equals a slow loop, and differs between rows by the model alone."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from tests.evaluation.test_suite import made_up, made_up_task, small_model

from clipset.config import build, to_mapping
from clipset.errors import ConfigError
from clipset.evaluation import retrieval
from clipset.evaluation.results import RetrievalResult
from clipset.evaluation.retrieval import score_rankings, score_retrieval
from clipset.probes.task import EvaluationTask, LabelledVideos


def scores_by_loops(
    train: np.ndarray, labels: list[int], test: np.ndarray, truth: list[int]
) -> tuple[float, dict[int, float]]:
    """Mean average precision and recall@k, from the definitions."""
    precisions, found = [], dict.fromkeys((1, 5, 10, 20), 0)
    for query, label in zip(test, truth, strict=True):
        cosines = [v @ query / np.sqrt((v @ v) * (query @ query)) for v in train]
        order = sorted(range(len(train)), key=lambda i: -cosines[i])
        hits, at_hits = 0, []
        for rank, i in enumerate(order, start=1):
            if labels[i] == label:
                hits += 1
                at_hits.append(hits / rank)
        precisions.append(sum(at_hits) / len(at_hits))
        for rank in found:
            found[rank] += any(labels[i] == label for i in order[:rank])
    return float(np.mean(precisions)), {rank: n / len(test) for rank, n in found.items()}


def test_retrieval_is_a_loop_over_queries_and_ranks() -> None:
    task = made_up_task(0.5, train=40, test=30)
    result = score_retrieval(task)[0]
    clips, labels = made_up(40, signal=0.5, seed=0)
    held, truth = made_up(30, signal=0.5, seed=1)
    train, test = (batch.features.mean(dim=1).double().numpy() for batch in (clips, held))
    precision, recall = scores_by_loops(train, labels.tolist(), test, truth.tolist())
    assert result.mean_average_precision == pytest.approx(precision, abs=1e-6)
    assert {int(rank): value for rank, value in result.recall.items()} == pytest.approx(recall)
    assert result.interval[0] < precision < result.interval[1]
    assert (result.n, result.num_train, result.split) == (30, 40, "test")


def test_the_rows_are_means_and_time_courses_with_and_without_models() -> None:
    task, models = made_up_task(1.0), [small_model(), small_model()]
    rows = score_retrieval(task, models)
    assert [(row.features, row.vectors, row.num_pretrainings) for row in rows] == [
        ("backbone", "mean", None), ("scale", "mean", 2),
        ("backbone", "time_course", None), ("scale", "time_course", 2),
    ]  # fmt: skip
    assert rows[::2] == score_retrieval(task)
    assert rows[1].mean_average_precision == pytest.approx(
        score_retrieval(task, models[:1])[1].mean_average_precision
    )
    perfect = score_retrieval(made_up_task(50.0), models[:1])
    assert all(row.mean_average_precision > 0.999 for row in perfect)
    assert all(row.recall["1"] == 1.0 for row in perfect)


def test_ranks_beyond_the_training_videos_are_left_out_and_many_queries_are_thinned(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    relevant = torch.tensor([[False, True, True], [True, False, False]])
    scores = score_rankings(relevant)
    assert scores.keys() == {"average precision", "1"}
    assert scores["average precision"].tolist() == pytest.approx([(1 / 2 + 2 / 3) / 2, 1.0])
    assert scores["1"].tolist() == [0.0, 1.0]
    monkeypatch.setattr(retrieval, "MAX_QUERIES", 10)
    assert score_retrieval(made_up_task(1.0))[0].n == 10


def test_targets_have_no_retrieval() -> None:
    task = made_up_task(1.0)
    train = replace(task.train, targets=torch.rand(60))
    assert isinstance(train, LabelledVideos)
    assert score_retrieval(EvaluationTask(classes=(), train=train, test=task.test)) == []


def test_records_of_retrieval_are_checked() -> None:
    record = to_mapping(score_retrieval(made_up_task(1.0))[0])
    assert build(RetrievalResult, record, "a file").n == 90
    for change in ({"recall": {"x": 0.5}}, {"recall": {"1": 2.0}}, {"interval": [0.9, 0.1]}):
        with pytest.raises(ConfigError, match="a file"):
            build(RetrievalResult, record | change, "a file")
