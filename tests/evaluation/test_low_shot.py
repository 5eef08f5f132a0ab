"""Scores with fewer labels: nested parts, the same test videos."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clipset.cli import main
from clipset.data.catalog import Catalog, Video
from clipset.errors import ProbeError
from clipset.evaluation.low_shot import FRACTIONS, nested_subsets, run_low_shot
from clipset.features.store import FeatureStore
from clipset.probes.config import EvaluateConfig, ProbeTraining

QUICK = EvaluateConfig(
    num_seeds=1,
    mlp_hidden=16,
    training=ProbeTraining(
        epochs=2, num_clips=4, learning_rates=(3e-3,), head_learning_rates=(3e-2,)
    ),
)


def made_up(per_class: int) -> Catalog:
    return Catalog(
        name="made up",
        videos=tuple(
            Video(
                id=f"{label}{number}{split}",
                path=Path(f"{label}{number}.mp4"),
                label=label,
                split=split,
            )
            for label in "abc"
            for split, count in (("train", per_class), ("test", 5))
            for number in range(count)
        ),
    )


def test_each_part_lies_within_the_next_and_the_test_videos_stay() -> None:
    catalog = made_up(200)
    parts = nested_subsets(catalog, FRACTIONS, seed=3)
    assert list(parts) == list(FRACTIONS)
    sizes = [len(part.split("train")) for part in parts.values()]
    assert sizes == [6, 12, 30, 60, 150, 300, 600]
    before: set[str] = set()
    for part in parts.values():
        now = {video.id for video in part.split("train")}
        assert before < now
        before = now
        assert part.split("test").videos == catalog.split("test").videos
    assert nested_subsets(catalog, FRACTIONS, seed=3) == parts
    assert nested_subsets(catalog, FRACTIONS, seed=4) != parts


def test_a_share_that_adds_no_video_is_passed_over() -> None:
    parts = nested_subsets(made_up(10), FRACTIONS, seed=0)
    assert list(parts) == [0.01, 0.25, 0.5, 1.0]
    assert [len(part.split("train")) for part in parts.values()] == [3, 6, 15, 30]


def test_shares_out_of_order_are_refused() -> None:
    with pytest.raises(ProbeError, match="in rising order"):
        nested_subsets(made_up(10), (0.5, 0.1), seed=0)


def test_every_point_is_judged_on_the_same_videos(small_store: FeatureStore) -> None:
    curves = run_low_shot(small_store, None, None, QUICK, fractions=(0.1, 0.5, 1.0))
    assert [(c.features, c.probe) for c in curves] == [
        ("backbone", "linear"), ("backbone", "transformer"),
    ]  # fmt: skip
    for curve in curves:
        assert curve.n == 6
        assert [point.videos for point in curve.points] == [3, 9, 18]
        assert all(point.interval[0] <= point.value <= point.interval[1] for point in curve.points)
        assert all("test" not in (point.selected_on or "") for point in curve.points)


def test_the_verb_writes_the_curves(
    small_store: FeatureStore, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "low_shot.json"
    words = [
        "evaluate",
        str(small_store.folder),
        "--low-shot-curve",
        "--out",
        str(out),
        "--seeds",
        "1",
    ]
    words += [
        "--set=evaluate.training.epochs=1",
        "--set=evaluate.training.num_clips=4",
        "--set=evaluate.training.learning_rates=[0.003]",
    ]
    words += ["--set=evaluate.training.head_learning_rates=[0.03]", "--quiet"]
    with pytest.raises(SystemExit) as stop:
        main(words)
    assert not stop.value.code
    assert "Linear" in capfd.readouterr().out
    assert [curve["probe"] for curve in json.loads(out.read_text())] == ["linear", "transformer"]
