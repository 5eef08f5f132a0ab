"""Probe records as results.json holds them."""

from __future__ import annotations

from typing import Any

import pytest

from clipset.errors import ReportError
from clipset.report import read_record
from clipset.report.records import group_records

PLAIN = {"features": "scale", "probe": "linear", "metric": "accuracy", "value": 0.5}


def test_a_record_may_hold_keys_that_the_page_does_not_show() -> None:
    record = read_record({**PLAIN, "seconds": 3.5, "config": {"lr": 0.1}, "seeds": [0, 1, 2]})
    assert (record.name, record.seed_count, record.interval) == ("SCALE linear", 3, None)


def test_whole_numbers_are_scores_too() -> None:
    record = read_record({**PLAIN, "value": 1, "interval": [0, 1], "seeds": 2})
    assert (record.value, record.interval, record.seed_count) == (1.0, (0.0, 1.0), 2)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"value": 1.5}, r"lie in \[0, 1\]"),
        ({"value": float("nan")}, r"lie in \[0, 1\]"),
        ({"interval": [0.6, 0.4]}, r"lie in \[0, 1\]"),
        ({"value": "high"}, "Expected `float`"),
        ({"confusion": {"classes": ["a", "b"], "counts": [[1, 2]]}}, "2 classes has rows of"),
    ],
)
def test_a_record_that_cannot_be_is_one_clear_line(change: dict[str, Any], said: str) -> None:
    with pytest.raises(ReportError, match=f"a probe record does not fit: .*{said}"):
        read_record({**PLAIN, **change})


def test_a_record_without_a_score_is_one_clear_line() -> None:
    with pytest.raises(ReportError, match="missing required field `value`"):
        read_record({"features": "scale", "probe": "linear", "metric": "accuracy"})


def test_rows_stand_in_the_order_of_the_paper_and_strangers_come_last() -> None:
    rows = [
        ("scale", "attentive"), ("scale", "finetune"), ("backbone", "transformer"),
        ("backbone", "mlp"), ("scale", "linear"), ("backbone", "linear"),
        ("scale", "knn"), ("backbone", "knn"), ("backbone", "concatenated_linear"),
    ]  # fmt: skip
    records = [read_record({**PLAIN, "features": f, "probe": p}) for f, p in rows]
    (panel,) = group_records(records)
    assert [record.name for record in panel.records] == [
        "k-NN", "SCALE k-NN", "Linear", "SCALE linear", "MLP", "Transformer", "SCALE fine-tuned",
        "SCALE attentive", "Concatenated linear",
    ]  # fmt: skip


def test_only_what_can_be_compared_shares_a_table() -> None:
    changes: list[dict[str, Any]] = [
        {"split": "test"}, {"split": "validation"}, {"metric": "top5", "split": "test"},
        {"split": "test", "probe": "knn"},
    ]  # fmt: skip
    panels = group_records([read_record({**PLAIN, **change}) for change in changes])
    assert [(p.metric, p.split, len(p.records)) for p in panels] == [
        ("accuracy", "test", 2), ("accuracy", "validation", 1), ("top5", "test", 1),
    ]  # fmt: skip


def test_accuracy_by_class_follows_from_the_confusion_matrix() -> None:
    counts = [[3, 1, 0], [0, 2, 0], [0, 0, 0]]
    record = read_record({**PLAIN, "confusion": {"classes": ["a", "b", "c"], "counts": counts}})
    assert record.class_accuracy() == {"a": 0.75, "b": 1.0, "c": None}


def test_recorded_accuracy_by_class_is_taken_as_it_is() -> None:
    record = read_record({**PLAIN, "per_class": {"a": 0.25, "b": None}})
    assert record.class_accuracy() == {"a": 0.25, "b": None}
