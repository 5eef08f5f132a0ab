"""`batch_from = "auto"`: one group a batch where groups are known, large and mixed."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from tests.training.test_pretrain import SMALL, with_groups

from clipset.data.catalog import Video
from clipset.features.store import FeatureStore
from clipset.recipe import load_settings
from clipset.training import batches
from clipset.training.batches import assess_groups, choose_batches
from clipset.training.config import PretrainConfig


def videos(
    sizes: dict[str | None, int], *, labels: int | None = 4, constant: bool = False
) -> list[Video]:
    """Videos of some groups; with constant labels, each group has a label of its own."""
    members = []
    for number, (group, size) in enumerate(sizes.items()):
        for index in range(size):
            label = None if labels is None else f"label {number if constant else index % labels}"
            path = Path(f"{group} {index}.mp4")
            members.append(Video(id=path.name, path=path, label=label, group=group, split="train"))
    return members


@pytest.mark.parametrize(
    ("members", "useful", "reason"),
    [
        (videos({"anna": 80, "ben": 70}), True, "2 groups of about 80 videos"),
        (videos({"anna": 80, "ben": 70, None: 10}), True, "2 groups"),
        (videos({"anna": 80, "ben": 70}, labels=None), True, "2 groups"),
        (videos({f"person {n}": 15 for n in range(8)}), True, "8 groups of about 15 videos"),
        (videos({"anna": 80, "ben": 70, None: 20}), False, "only 150 of 170 videos have a group"),
        (videos({"anna": 150}), False, "all videos are of one group"),
        (videos({f"person {n}": 8 for n in range(40)}), False, "groups of 8 videos are small"),
        (videos({"anna": 80, "ben": 70}, constant=True), False, "one label has 100%"),
        (videos({None: 90}), False, "the catalog has no groups"),
    ],
)
def test_groups_are_used_where_they_are_known_large_and_mixed(
    members: list[Video], useful: bool, reason: str
) -> None:
    decided, line = assess_groups(members)
    assert decided is useful
    assert reason in line


def test_labels_of_the_test_split_have_no_say() -> None:
    members = videos({"anna": 80, "ben": 70})
    constant = videos({"anna": 80, "ben": 70}, constant=True)
    hidden = [replace(video, split="test") for video in constant]
    assert assess_groups(members) == assess_groups([*members, *hidden][: len(members)])
    assert assess_groups(hidden)[0]


def test_the_papers_presets_take_any_videos() -> None:
    assert PretrainConfig().batch_from == "auto"
    for name in ("paper", "official"):
        assert load_settings(PretrainConfig, name).batch_from == "all"


def test_auto_takes_one_group_a_batch_and_the_rest_is_one_group(
    small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batches, "MIN_GROUP_SIZE", 8)
    names: list[str | None] = ["anna" if index % 2 else "ben" for index in range(len(small_store))]
    names[0], names[1] = None, "alone"
    store = with_groups(small_store, names, tmp_path / "store")
    every = np.arange(len(store))
    config = replace(SMALL, ssl_split="all", batch_from="auto")
    choice = choose_batches(store, every, config)
    assert str(choice).startswith("batches of one group each: 3 groups of about 11 videos")
    assert choice.groups is not None
    assert choice.groups[0] == choice.groups[1]
    assert choice.groups.bincount().tolist() == [11, 11, 2]
    mixed = choose_batches(small_store, every, config)
    assert mixed.groups is None
    assert str(mixed).startswith("batches of any videos: the catalog has no groups")
