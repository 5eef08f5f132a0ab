"""Doubtful labels, duplicates and outliers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.labelling.conftest import CLASSES

from clipset.labelling import LabelLoop
from clipset.labelling import views as views_module
from clipset.labelling.views import find_duplicates, find_neighbours, find_outliers
from clipset.representation import read_vectors, write_vectors


def test_a_wrong_label_is_doubted(run_folder: Path) -> None:
    loop = LabelLoop(run_folder)
    assert loop.view("doubtful") == []
    for video in range(41):
        loop.add(video, "wave" if video in (8, 14) else CLASSES[video % 4])
    assert 14 in loop.held_out
    assert 8 not in loop.held_out
    first, second = loop.view("doubtful")[:2]
    assert {first.video_indices, second.video_indices} == {(8,), (14,)}
    assert first.score >= second.score
    assert {"labelled wave, looks like jump", "labelled wave, looks like sit"} == {
        item.reason.partition(" (")[0] for item in (first, second)
    }


def test_copies_are_one_group_and_a_stranger_is_an_outlier(run_folder: Path) -> None:
    table = read_vectors(run_folder / "vectors")
    vectors = np.array(table.vectors)
    vectors[50] = vectors[90] = vectors[7] * 1.001
    vectors[33] = -vectors[33] + np.linspace(-5, 5, 24, dtype=np.float32)
    write_vectors(replace(table, vectors=vectors), run_folder / "vectors")
    loop = LabelLoop(run_folder)
    [group] = loop.view("duplicates")
    assert group.video_indices == (7, 50, 90)
    assert group.score > 0.999
    assert loop.view("outliers")[0].video_indices == (33,)
    for _ in range(30):  # copies are not shown together
        shown = [item.video_index for item in loop.queue(12)]
        assert len({7, 50, 90} & set(shown)) <= 1
        loop.add(shown[0], "any")


def test_neighbours_in_cells_are_nearly_all_neighbours(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(0)
    values = rng.normal(size=(30, 1, 16)) + 0.3 * rng.normal(size=(30, 20, 16))
    values = values.reshape(-1, 16).astype(np.float32)
    values /= np.linalg.norm(values, axis=1, keepdims=True)
    exact = find_neighbours(values)
    monkeypatch.setattr(views_module, "MAX_EXACT", 100)
    cells = find_neighbours(values)
    assert (exact.indices == cells.indices).mean() > 0.95
    same = np.repeat(values[:1], 200, axis=0)
    assert find_neighbours(same).cosines.min() > 0.999


def test_a_single_video_has_no_views() -> None:
    neighbours = find_neighbours(np.ones((1, 4), dtype=np.float32))
    assert find_outliers(neighbours) == find_duplicates(neighbours, np.ones((1, 4))) == []
