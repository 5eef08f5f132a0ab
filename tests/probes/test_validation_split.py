"""Validation videos: of learned classes only, and never copies of videos that are learned from."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from clipset.data.catalog import Catalog, Video
from clipset.errors import ProbeError
from clipset.features.importers import import_features
from clipset.probes.search import make_validation_split, split_training_videos
from clipset.probes.task import LabelledVideos, make_task
from clipset.sets.batch import ClipBatch


def make_videos(labels: Tensor, groups: list[str] | None = None) -> LabelledVideos:
    clips = ClipBatch(torch.zeros(len(labels), 2, 3), torch.zeros(len(labels), 2, 6))
    group_names = (None,) * len(labels) if groups is None else tuple(groups)
    return LabelledVideos(clips, clips, labels, group_names)


def test_groups_of_one_class_each_cannot_be_divided_and_videos_are_stratified() -> None:
    """Whatever group is held out, its class is not learned."""
    labels = torch.arange(40) % 4
    train = make_videos(labels, [f"person {label}" for label in labels])
    split = make_validation_split(train, 0)
    assert split.validation is not None
    assert split.description == "10 of 40 training videos (stratified)"
    assert set(split.validation.classes.tolist()) == set(range(4))


@pytest.mark.parametrize("sizes", [(540, 60), (400, 100, 50, 50), (50, 50, 50, 50, 400)])
@pytest.mark.parametrize("kind", ["classes", "targets"])
@pytest.mark.parametrize("seed", range(10))
def test_validation_groups_are_about_a_quarter_of_the_videos(
    sizes: tuple[int, ...], kind: str, seed: int
) -> None:
    labels = torch.arange(600) % 2
    groups = [f"person {number}" for number, size in enumerate(sizes) for _ in range(size)]
    train = make_videos(labels, groups)
    if kind == "targets":
        train = replace(train, targets=torch.rand(600))
    parts = split_training_videos(train, 0.25, seed)
    assert parts is not None
    assert 0.05 <= len(parts[1]) / 600 <= 0.45
    assert not {groups[video] for video in parts[0]} & {groups[video] for video in parts[1]}


@pytest.mark.parametrize("seed", range(5))
def test_more_groups_validate_if_one_has_a_single_class(seed: int) -> None:
    labels = torch.arange(400) // 200
    groups = [f"person {video // 100}" for video in range(400)]  # two of each class
    parts = split_training_videos(make_videos(labels, groups), 0.25, seed)
    assert parts is not None
    assert len({groups[video] for video in parts[1]}) == 2
    assert set(labels[parts[0]].tolist()) == set(labels[parts[1]].tolist()) == {0, 1}


@pytest.mark.parametrize("seed", range(5))
def test_a_video_without_a_group_does_not_divide_the_groups_of_others(seed: int) -> None:
    train = make_videos(torch.arange(40) % 2, [f"person {video // 4}" for video in range(40)])
    groups = (None, *train.groups[1:])
    parts = split_training_videos(replace(train, groups=groups), 0.25, seed)
    assert parts is not None
    learned, validated = ({groups[video] for video in part} for part in parts)
    assert not learned & validated


@pytest.mark.parametrize("seed", range(20))
def test_groups_are_drawn_until_every_validation_class_is_learned(seed: int) -> None:
    """Two of three classes have two groups each; the third has one, which is always learned."""
    names = ["a1", "a2", "b1", "b2", "ab", "c"]
    labels = torch.tensor([0, 0, 1, 1, 0, 2, 1]).repeat_interleave(3)
    groups = [name for name in [*names, "ab"] for _ in range(3)]
    parts = split_training_videos(make_videos(labels, groups), 0.25, seed)
    assert parts is not None
    learn, check = parts
    assert set(labels[check].tolist()) == {0, 1} <= set(labels[learn].tolist())
    assert not {groups[video] for video in learn} & {groups[video] for video in check}
    again = split_training_videos(make_videos(labels, groups), 0.25, seed)
    assert again is not None
    assert all(torch.equal(*pair) for pair in zip(parts, again, strict=True))


def test_validation_videos_of_classes_that_no_draw_learns_are_dropped() -> None:
    """Every group has a class of its own beside the two that all have."""
    groups = [f"person {video // 6}" for video in range(48)]
    labels = torch.tensor([(0, 0, 1, 1, 1, 2 + video // 6)[video % 6] for video in range(48)])
    parts = split_training_videos(make_videos(labels, groups), 0.25, seed=0)
    assert parts is not None
    learn, check = parts
    assert len(learn) == 36
    assert len(check) == 10  # of two groups
    assert set(labels[check].tolist()) == {0, 1}


def test_groups_of_targets_are_not_drawn_again() -> None:
    groups = [f"person {video // 10}" for video in range(40)]
    train = replace(make_videos(torch.zeros(40, dtype=torch.int64), groups), targets=torch.rand(40))
    parts = split_training_videos(train, 0.25, seed=0)
    assert parts is not None
    assert [len(part) for part in parts] == [30, 10]


@pytest.mark.parametrize("kind", ["classes", "targets", "groups"])
@pytest.mark.parametrize("seed", range(5))
def test_copies_of_a_file_are_on_one_side_of_the_validation_split(kind: str, seed: int) -> None:
    labels = torch.arange(80) % 4
    groups = [f"person {video // 5}" for video in range(80)] if kind == "groups" else None
    train = make_videos(labels, groups)
    if kind == "targets":
        train = replace(train, targets=torch.rand(80))
    files = [str(video % 60) for video in range(80)]  # 20 of them twice
    parts = split_training_videos(replace(train, files=tuple(files)), 0.25, seed)
    assert parts is not None
    learned, validated = ({files[video] for video in part} for part in parts)
    assert learned | validated == set(files)
    assert not learned & validated
    if groups is not None:
        assert not {groups[video] for video in parts[0]} & {groups[video] for video in parts[1]}
    if kind == "classes":  # still stratified
        assert labels[parts[1]].bincount().min() >= 3


@pytest.mark.parametrize("kind", ["classes", "targets", "groups"])
def test_without_copies_the_validation_split_is_as_if_files_were_not_known(kind: str) -> None:
    labels = torch.arange(80) % 4
    groups = [f"person {video % 16}" for video in range(80)] if kind == "groups" else None
    train = make_videos(labels, groups)
    if kind == "targets":
        train = replace(train, targets=torch.rand(80))
    known = replace(train, files=tuple(map(str, range(80, 0, -1))))
    pairs = [split_training_videos(videos, 0.25, seed=3) for videos in (train, known)]
    assert pairs[0] is not None
    assert pairs[1] is not None
    assert all(torch.equal(*parts) for parts in zip(*pairs, strict=True))


def test_groups_that_copies_join_to_one_are_no_groups() -> None:
    train = make_videos(torch.arange(40) % 4, [f"person {video % 2}" for video in range(40)])
    files = tuple(str(max(video, 1)) for video in range(40))  # the first two are copies
    parts = split_training_videos(replace(train, files=files), 0.25, seed=0)
    assert parts is not None
    assert sorted(torch.cat(parts).tolist()) == list(range(40))
    assert "stratified" in str(make_validation_split(replace(train, files=files), 0).description)


def make_catalog(folder: Path, labels: dict[str, str]) -> Catalog:
    """Videos of some labels by their splits, as files; the first two training videos are copies."""
    folder.mkdir()
    rng, videos = np.random.default_rng(0), []
    for split, split_labels in labels.items():
        for number, label in enumerate(split_labels):
            path = folder / f"{split}{number}.npy"
            np.save(path, rng.standard_normal((4, 5)).astype(np.float32))
            videos.append(Video(id=path.stem, path=path, label=label, split=split))
    (folder / "train1.npy").write_bytes((folder / "train0.npy").read_bytes())
    return Catalog(name="made up", videos=tuple(videos))


def test_a_task_knows_which_training_videos_are_copies(tmp_path: Path) -> None:
    catalog = make_catalog(tmp_path / "videos", {"train": "abcabc", "test": "abc"})
    task = make_task(import_features(tmp_path / "videos", tmp_path / "store", catalog))
    files = task.train.files
    assert files[0] == files[1]
    assert len(set(files)) == 5
    assert task.train.select(torch.tensor([4, 0])).files == (files[4], files[0])


def test_training_videos_of_one_class_are_refused(tmp_path: Path) -> None:
    """Validation videos of other classes do not make it a task."""
    labels = {"train": "aaaa", "val": "abab", "test": "aaa"}
    catalog = make_catalog(tmp_path / "videos", labels)
    store = import_features(tmp_path / "videos", tmp_path / "store", catalog)
    with pytest.raises(ProbeError, match=r"all 4 training videos have the label 'a'.*at least two"):
        make_task(store)
