"""Any finite vectors get a map: equal ones, constant ones, a few, huge and tiny ones."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from tests.attacks.conftest import TINY, Clipset
from tests.conftest import write_video

from clipset.errors import ReportError
from clipset.report.video_map import map_positions
from clipset.representation import nearest

CASES = """
import numpy as np
from clipset.report.video_map import map_positions

rng = np.random.default_rng(0)
one = rng.normal(size=(1, 64)).astype(np.float32)
signs = np.where(rng.random((20, 64)) < 0.5, -1, 1).astype(np.float32)
cases = {
    "20 copies": np.tile(one, (20, 1)),
    "30 zeros": np.zeros((30, 64), np.float32),
    "15 times 0.1": np.full((15, 8), 0.1, np.float32),
    "3 values, 200 times": np.repeat(rng.normal(size=(3, 64)).astype(np.float32), 200, axis=0),
    "an outlier and 40 copies": np.concatenate([np.tile(one, (40, 1)), 5 * one]),
    "copies but for rounding": np.nextafter(np.tile(one, (20, 1)), 9 * signs),
    "subnormal differences": (rng.integers(0, 3, (20, 64)) * np.float32(1e-45)).astype(np.float32),
    "the largest float16": 65504 * signs,
    "the largest float32": np.float32(3e38) * signs,
    "one dimension": rng.normal(size=(30, 1)).astype(np.float32),
    **{f"{n} videos": rng.normal(size=(n, 64)).astype(np.float32) for n in (1, 2, 3, 12, 13, 15)},
}
for name, vectors in cases.items():
    positions = map_positions(vectors)
    assert positions.shape == (len(vectors), 2), name
    assert np.isfinite(positions).all(), name
    assert len(np.unique(positions, axis=0)) == len(vectors), name
print(len(cases), "laid out")
"""


def test_equal_vectors_do_not_crash_the_map(clipset: Clipset) -> None:
    done = clipset("-W", "error", "-c", CASES, command=(sys.executable,))
    assert (done.returncode, done.stdout) == (0, "16 laid out\n"), done.stderr


@given(
    vectors=st.tuples(st.integers(1, 14), st.integers(1, 3)).flatmap(
        lambda shape: arrays(np.float32, shape, elements=st.floats(-(2.0**127), 2.0**127, width=32))
    )
)
@settings(max_examples=40, deadline=None, derandomize=True)
def test_any_finite_vectors_get_a_finite_map(vectors: np.ndarray) -> None:
    positions = map_positions(vectors)
    assert positions.shape == (len(vectors), 2)
    assert np.isfinite(positions).all()


def test_copies_lie_together_and_apart_from_others() -> None:
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(30, 16)).astype(np.float32)
    vectors[20:] = vectors[0]
    positions = map_positions(vectors)
    extent = np.ptp(positions, axis=0).max()
    copies = np.linalg.norm(positions[20:] - positions[0], axis=1)
    assert (copies > 0).all()
    assert (copies < 0.02 * extent).all()
    assert len(np.unique(positions, axis=0)) == 30


def test_vectors_that_are_not_finite_are_one_clear_error() -> None:
    with pytest.raises(ReportError, match="not finite"):
        map_positions(np.full((20, 4), np.nan, dtype=np.float32))


def test_neighbours_of_huge_vectors_have_finite_scores() -> None:
    rng = np.random.default_rng(0)
    vectors = np.where(rng.random((20, 8)) < 0.5, -3e38, 3e38).astype(np.float32)
    found, scores = nearest(vectors, np.arange(4), 3)
    assert np.isfinite(scores).all()
    assert found.shape == (4, 3)


@pytest.mark.slow
def test_a_run_over_copies_of_one_video_ends_with_a_report(
    clipset: Clipset, tmp_path: Path
) -> None:
    first = write_video(tmp_path / "videos" / "0.mp4", seconds=0.5)
    for number in range(1, 20):
        shutil.copy(first, first.with_name(f"{number}.mp4"))
    done = clipset("run", tmp_path / "videos", "--out", tmp_path / "run", *TINY, "--quiet")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "report.html").is_file()
