"""Panels: results that can be compared."""

from __future__ import annotations

from typing import Any

from tests.report.conftest import make_result

from clipset.report.content import group_results
from clipset.report.wording import row_name


def test_rows_are_in_the_order_of_the_paper_and_others_come_last() -> None:
    rows = [
        ("scale", "attentive"), ("scale", "finetune"), ("backbone", "transformer"),
        ("backbone", "mlp"), ("scale", "linear"), ("backbone", "linear"),
        ("scale", "knn"), ("backbone", "knn"),
    ]  # fmt: skip
    (panel,) = group_results([make_result(*row) for row in rows])
    assert [row_name(result.features, result.probe) for result in panel.results] == [
        "k-NN", "SCALE k-NN", "Linear", "SCALE linear", "MLP", "Transformer", "SCALE fine-tuned",
        "SCALE attentive",
    ]  # fmt: skip


def test_only_comparable_results_are_in_one_panel() -> None:
    changes: list[dict[str, Any]] = [
        {"split": "test"}, {"split": "validation"}, {"metric": "top5", "split": "test"},
        {"split": "test", "probe": "knn"},
    ]  # fmt: skip
    panels = group_results([make_result(**change) for change in changes])
    assert [(p.metric, p.split, len(p.results)) for p in panels] == [
        ("accuracy", "test", 2), ("accuracy", "validation", 1), ("top5", "test", 1),
    ]  # fmt: skip
