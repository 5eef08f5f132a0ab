"""The official preset against what the published sampling code gives."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from clipset.clips.sampling import ClipPlan, regular_clips
from clipset.decoding.reader import VideoInfo
from clipset.features.config import ExtractConfig
from clipset.recipe import load_settings
from clipset.sets.reading import official_boxes

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol" / "test_views.json"
CASES: list[dict[str, Any]] = json.loads(GOLDEN.read_text("utf-8"))["cases"]
by_case = pytest.mark.parametrize(
    "case", CASES, ids=lambda case: f"{case['n_frames']} frames at {case['fps']}"
)


def video_of(case: dict[str, Any]) -> VideoInfo:
    count = case["n_frames"]
    return VideoInfo(
        width=case["frame_width"],
        height=case["frame_height"],
        frame_times=np.arange(count) / case["fps"],
        duration=count / case["fps"],
        expected_frames=count,
    )


def plan_of(case: dict[str, Any]) -> ClipPlan:
    sampling = replace(
        load_settings(ExtractConfig, "official").sampling,
        num_times=case["num_temporal_views"],
        num_crops=case["num_spatial_crops"],
    )
    span = case["sampling_rate"] * case["num_frames"] / case["target_fps"]
    return regular_clips(video_of(case), sampling, span=span, frames=case["num_frames"])


def test_there_are_five_published_cases_with_66_clips() -> None:
    assert len(CASES) == 5
    assert sum(len(case["views"]) for case in CASES) == 66


@by_case
def test_official_regular_clips_show_the_published_frames(case: dict[str, Any]) -> None:
    assert plan_of(case).frame_indices.tolist() == [view["frame_indices"] for view in case["views"]]


@by_case
def test_official_regular_clips_start_and_end_when_published_ones_do(case: dict[str, Any]) -> None:
    plan = plan_of(case)
    last = case["n_frames"]
    for box, view in zip(plan.boxes, case["views"], strict=True):
        assert box.start * case["fps"] == pytest.approx(view["start"], rel=1e-12, abs=1e-12)
        # A published clip may end after its video; a box of ours never does.
        assert box.end * case["fps"] == pytest.approx(min(view["end"], last), rel=1e-12)


@by_case
def test_official_regular_clips_are_cut_where_published_ones_are(case: dict[str, Any]) -> None:
    height, width = case["resized_height"], case["resized_width"]
    for box, view in zip(plan_of(case).boxes, case["views"], strict=True):
        found = (box.top * height, box.left * width, box.bottom * height, box.right * width)
        top, left, size = view["crop_top"], view["crop_left"], view["crop_size"]
        assert found == pytest.approx((top, left, top + size, left + size), rel=1e-12, abs=1e-9)
        assert not box.flipped


@by_case
def test_official_boxes_of_regular_clips_are_the_published_positions(case: dict[str, Any]) -> None:
    rows = np.array([[box.as_row() for box in plan_of(case).boxes]], dtype=np.float32)
    published = np.array([view["position_vector"] for view in case["views"]])
    np.testing.assert_allclose(official_boxes(rows)[0], published, rtol=0, atol=5e-7)
