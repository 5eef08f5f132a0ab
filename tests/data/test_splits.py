"""Splits and low-shot subsets: fair to every class, never across a group, the same every time."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from clipset.data.catalog import Catalog, Video
from clipset.data.splits import (
    assign_splits,
    explain_no_test,
    keep_fraction,
    select_part,
    subset_indices,
)
from clipset.errors import CatalogError

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol" / "low_shot_subset.json"


def catalog_of(labels: list[str | None], groups: list[str | None] | None = None) -> Catalog:
    groups = groups or [None] * len(labels)
    return Catalog(
        name="c",
        videos=tuple(
            Video(id=str(number), path=Path(f"{number}.mp4"), label=label, group=group)
            for number, (label, group) in enumerate(zip(labels, groups, strict=True))
        ),
    )


def counts(catalog: Catalog, split: str) -> dict[str | None, int]:
    return dict(Counter(video.label for video in catalog if video.split == split))


def test_every_class_keeps_its_share() -> None:
    catalog = assign_splits(catalog_of(["a"] * 40 + ["b"] * 8), test_fraction=0.25, seed=0)
    assert counts(catalog, "train") == {"a": 30, "b": 6}
    assert counts(catalog, "test") == {"a": 10, "b": 2}


def test_the_same_seed_gives_the_same_split_and_another_seed_another() -> None:
    catalog = catalog_of(["a", "b"] * 20)
    once = assign_splits(catalog, test_fraction=0.5, seed=1)
    assert once == assign_splits(catalog, test_fraction=0.5, seed=1)
    assert once != assign_splits(catalog, test_fraction=0.5, seed=2)


@pytest.mark.parametrize("fraction", [0.01, 0.25, 0.5, 0.99])
def test_two_videos_of_one_class_are_split_in_two(fraction: float) -> None:
    catalog = assign_splits(catalog_of(["a", "a"]), test_fraction=fraction, seed=0)
    assert counts(catalog, "train") == {"a": 1}
    assert counts(catalog, "test") == {"a": 1}


def test_a_class_with_one_video_is_for_training() -> None:
    catalog = assign_splits(catalog_of(["a", "a", "b"]), test_fraction=0.5, seed=0)
    assert counts(catalog, "train") == {"a": 1, "b": 1}
    assert counts(catalog, "test") == {"a": 1}


def test_videos_without_a_label_are_for_training_if_any_has_one() -> None:
    catalog = assign_splits(catalog_of(["a", None, "a"]), test_fraction=0.5, seed=0)
    assert [video.split for video in catalog if video.label is None] == ["train"]
    assert assign_splits(catalog_of([None] * 3), test_fraction=0.5, seed=0).splits == ()


def test_videos_without_a_label_are_not_trained_on_if_a_test_video_is_of_their_group() -> None:
    groups = ["u", "v", "u", "v", "w"]
    videos = zip(catalog_of(["a", "a", None, None, None]), groups, strict=True)
    grouped = Catalog(name="c", videos=tuple(replace(v, group=group) for v, group in videos))
    catalog = assign_splits(grouped, test_fraction=0.5, seed=0)
    (test_group,) = {video.group for video in catalog if video.split == "test"}
    unlabelled = {video.group: video.split for video in catalog if video.label is None}
    train_group = "u" if test_group == "v" else "v"
    assert unlabelled == {test_group: None, train_group: "train", "w": "train"}


def test_videos_that_an_unlabelled_one_links_stay_together(tmp_path: Path) -> None:
    """`a` is a copy of a video without a label, which is of the group of `b`."""
    for name, content in (("a", b"1"), ("copy", b"1"), ("b", b"2"), ("c", b"3")):
        (tmp_path / name).write_bytes(content)
    facts = {"a": ("z", None), "copy": (None, "g"), "b": ("z", "g"), "c": ("z", None)}
    videos = tuple(
        Video(id=name, path=tmp_path / name, label=label, group=group)
        for name, (label, group) in facts.items()
    )
    for seed in range(6):
        catalog = assign_splits(Catalog(name="c", videos=videos), test_fraction=0.5, seed=seed)
        split = {video.id: video.split for video in catalog}
        assert split["a"] == split["b"] != split["c"]
        assert split["copy"] == (None if split["a"] == "test" else "train")


def test_videos_with_targets_are_split_too() -> None:
    videos = [replace(video, target=1.5) for video in catalog_of([None] * 8)]
    catalog = assign_splits(Catalog(name="c", videos=tuple(videos)), test_fraction=0.25, seed=0)
    assert sorted(video.split or "" for video in catalog) == ["test"] * 2 + ["train"] * 6


def test_a_catalog_that_has_splits_stays_as_it_is() -> None:
    given = Video(id="given", path=Path("1.mp4"), label="a", split="x")
    catalog = Catalog(name="c", videos=(given, *catalog_of(["a", "a"])))
    assert assign_splits(catalog, test_fraction=0.5, seed=0) is catalog


@settings(max_examples=150, deadline=None, derandomize=True)
@given(
    facts=st.lists(
        st.tuples(st.sampled_from("abc"), st.none() | st.sampled_from("uvwxyz")), max_size=40
    ),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 99),
)
def test_no_group_is_in_two_splits_and_every_class_can_be_learnt(
    facts: list[tuple[str, str | None]], fraction: float, seed: int
) -> None:
    catalog = catalog_of([label for label, _ in facts], [group for _, group in facts])
    split = assign_splits(catalog, test_fraction=fraction, seed=seed)
    assert [video.id for video in split] == [video.id for video in catalog]
    places: dict[str, set[str | None]] = {}
    for video in split:
        assert video.split in ("train", "test")
        if video.group is not None:
            places.setdefault(video.group, set()).add(video.split)
    assert all(len(splits) == 1 for splits in places.values())
    assert set(counts(split, "train")) == set(catalog.classes)


def test_people_are_kept_apart_where_there_are_enough_of_them() -> None:
    labels = [label for label in "abcd" for _ in range(20)]
    groups = [f"person {number % 10}" for number in range(80)]
    catalog = assign_splits(catalog_of(list(labels), list(groups)), test_fraction=0.2, seed=3)
    assert counts(catalog, "test") == dict.fromkeys("abcd", 4)


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1.0, float("nan")])
def test_a_test_fraction_outside_0_to_1_is_refused(fraction: float) -> None:
    with pytest.raises(CatalogError, match="test fraction must be between 0 and 1"):
        assign_splits(catalog_of(["a", "a"]), test_fraction=fraction, seed=0)


def training(labels: list[int]) -> Catalog:
    return Catalog(
        name="c",
        videos=tuple(
            Video(id=str(number), path=Path("x.mp4"), label=f"{label}", split="train")
            for number, label in enumerate(labels)
        ),
    )


def test_low_shot_subsets_are_those_of_the_published_protocol() -> None:
    golden = json.loads(GOLDEN.read_text())
    for fraction in (0.1, 0.25):
        kept = keep_fraction(training(golden["labels"]), fraction)
        assert [int(video.id) for video in kept] == golden[f"fraction_{fraction}"]


def test_low_shot_subsets_leave_the_other_splits_whole() -> None:
    catalog = assign_splits(catalog_of(["a"] * 20 + ["b"] * 20), test_fraction=0.5, seed=0)
    small = keep_fraction(catalog, 0.3)
    assert counts(small, "train") == {"a": 3, "b": 3}
    assert small.split("test") == catalog.split("test")


def test_a_subset_has_at_least_one_of_each_class() -> None:
    labels = [0, 1, 0, 0, 1, 0]
    assert subset_indices(labels, fraction=0.5) == [0, 1, 2]
    assert subset_indices(labels, fraction=0.01) == [0, 1]
    assert subset_indices(labels, fraction=1.0) == list(range(6))


def test_a_generator_draws_other_videos_and_the_same_ones_again() -> None:
    catalog = training([0] * 50)
    drawn = keep_fraction(catalog, 0.1, generator=np.random.default_rng(0))
    assert drawn == keep_fraction(catalog, 0.1, generator=np.random.default_rng(0))
    assert drawn != keep_fraction(catalog, 0.1)
    assert len(drawn) == 5


def test_a_subset_of_nothing_is_refused() -> None:
    for fraction in (0.0, 1.5):
        with pytest.raises(CatalogError, match="fraction to keep must be above 0"):
            keep_fraction(training([0]), fraction)
    with pytest.raises(CatalogError, match="has no split 'train'"):
        keep_fraction(catalog_of(["a"]), 0.5)


def test_every_video_is_in_one_part_whatever_else_the_catalog_has() -> None:
    catalog = catalog_of(["a"] * 60)
    parts = [select_part(catalog, f"{number}/4") for number in range(1, 5)]
    assert sorted(v.id for part in parts for v in part) == sorted(v.id for v in catalog)
    fewer = select_part(catalog.only(catalog.videos[:40]), "2/4")
    assert {v.id for v in fewer} == {v.id for v in parts[1]} & {v.id for v in catalog.videos[:40]}


@pytest.mark.parametrize("part", ["5/4", "0/4", "1/0", "1", "a/b", "-1/4", "1/4/2"])
def test_a_part_that_does_not_exist_is_refused(part: str) -> None:
    with pytest.raises(CatalogError, match=r"--part must be I/N with 1 ≤ I ≤ N, such as 2/8; got"):
        select_part(catalog_of(["a"] * 9), part)


def test_a_part_without_videos_is_refused() -> None:
    with pytest.raises(CatalogError, match=r"none of the 1 videos is in part"):
        list(map(partial(select_part, catalog_of(["a"])), ("1/2", "2/2")))


def test_if_no_group_fits_the_share_the_smallest_is_for_testing() -> None:
    groups: list[str | None] = ["x"] * 8 + ["y"] * 6
    catalog = assign_splits(catalog_of(["a", "b"] * 7, groups), test_fraction=0.1, seed=0)
    assert {video.group for video in catalog.split("test")} == {"y"}
    assert catalog.has_drawn_splits


@pytest.mark.parametrize(
    ("labels", "groups", "reason"),
    [
        (["a", "b"], None, "every label has only one video, which is for training"),
        (["a"], None, "there is only one, which is for training"),
        (["a", "b"] * 2, ["x"] * 4, "the videos form 1 group that cannot be divided"),
    ],
)
def test_a_catalog_without_test_videos_says_why(
    labels: list[str | None], groups: list[str | None] | None, reason: str
) -> None:
    catalog = assign_splits(catalog_of(labels, groups), test_fraction=0.5, seed=0)
    assert counts(catalog, "test") == {}
    assert explain_no_test(catalog).startswith(reason)
