"""Batches of similar videos, where the catalog has no groups."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.training.test_batches import videos
from tests.training.test_pretrain import SMALL
from torch import Tensor

from clipset.features.store import FeatureStore
from clipset.training import batches, similar
from clipset.training.batches import choose_batches
from clipset.training.card import model_page
from clipset.training.checkpoint import read_card
from clipset.training.pretrain import is_trained, pretrain
from clipset.training.similar import (
    are_labels_known,
    assess_clusters,
    cluster_videos,
    mean_features,
)


def blobs(*sizes: int, dim: int = 16) -> Tensor:
    """Features around a few distant means."""
    generator = torch.Generator().manual_seed(0)
    means = 10 * torch.eye(dim)[: len(sizes)]
    noise = torch.randn(sum(sizes), dim, generator=generator)
    return means.repeat_interleave(torch.tensor(sizes), dim=0) + 0.1 * noise


def test_videos_that_look_alike_are_of_one_cluster() -> None:
    clusters = cluster_videos(blobs(100, 60, 80))
    assert len(clusters.unique()) == int(clusters.max()) + 1
    assert [len(part.unique()) for part in clusters.split([100, 60, 80])] == [1, 1, 1]


def test_small_clusters_join_others() -> None:
    clusters = cluster_videos(blobs(100, 95, 5))
    assert int(clusters.bincount().min()) >= similar.MIN_CLUSTER_SIZE


def test_videos_that_all_look_the_same_are_one_cluster() -> None:
    assert cluster_videos(torch.ones(200, 4)).unique().tolist() == [0]


def test_clusters_are_worth_it_where_they_say_nothing_about_labels() -> None:
    members = videos({None: 160}, labels=4)
    number = torch.arange(160)
    assert assess_clusters(members, number // 40)[0]
    useful, reason = assess_clusters(members, number % 4)
    assert not useful
    assert "100% of a cluster" in reason


def test_a_frequent_label_is_no_sign_of_similarity() -> None:
    members = [
        replace(v, label="most" if i % 10 else "rest") for i, v in enumerate(videos({None: 160}))
    ]
    assert assess_clusters(members, torch.arange(160) // 40)[0]


@pytest.mark.parametrize(("labelled", "known"), [(0, False), (19, False), (20, True)])
def test_with_few_labels_nothing_says_that_similar_videos_differ(
    labelled: int, known: bool
) -> None:
    members = [
        replace(video, label=video.label if index < labelled else None)
        for index, video in enumerate(videos({None: 160}))
    ]
    assert are_labels_known(members) is known
    assert not are_labels_known([replace(video, split="test") for video in members])


def test_test_labels_do_not_decide_about_similar_videos() -> None:
    members, clusters = videos({None: 160}), torch.arange(160) // 40
    hidden = [replace(video, split="test", label=f"{i // 40}") for i, video in enumerate(members)]
    both = torch.cat([clusters, clusters])
    assert assess_clusters([*members, *hidden], both) == assess_clusters(members, clusters)


def test_mean_features_are_those_of_a_plain_loop(small_store: FeatureStore) -> None:
    every = np.arange(len(small_store))[::-1].copy()
    table = small_store.random
    expected = [
        np.asarray(
            table.features[table.first[v] : table.first[v] + table.count[v]], np.float32
        ).mean(0)
        for v in every
    ]
    np.testing.assert_allclose(mean_features(small_store, every), np.stack(expected), rtol=1e-5)


def test_training_on_similar_videos_is_recorded_and_found_again(
    small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, value in (
        (batches, "CLUSTER_SIZE", 8), (similar, "CLUSTER_SIZE", 8),
        (similar, "MIN_CLUSTER_SIZE", 3),
        (similar, "MAX_LABEL_EXCESS", 1.0),
    ):  # fmt: skip
        monkeypatch.setattr(module, name, value)
    config = replace(SMALL, ssl_split="all", batch_from="auto")
    choice = choose_batches(small_store, np.arange(len(small_store)), config)
    assert choice.groups is not None
    assert str(choice).startswith(
        "batches of similar videos: the catalog has no groups, and similar videos have different"
    )
    unlabelled = [replace(video, label=None) for video in small_store.catalog]
    other = FeatureStore(small_store.folder, small_store.catalog.only(unlabelled))
    for batch_from, kind in (("auto", "any videos"), ("similar", "similar videos")):
        own = choose_batches(other, np.arange(len(other)), replace(config, batch_from=batch_from))
        assert own.kind == kind
    pretrain(small_store, tmp_path / "model", config)
    card = read_card(tmp_path / "model")
    assert (card.batches, card.batches_reason) == (choice.kind, choice.reason)
    assert "| videos of a batch | similar videos: the catalog has no groups" in model_page(card)
    assert is_trained(small_store, tmp_path / "model", config, seed=0)
    assert not is_trained(other, tmp_path / "model", config, seed=0)  # it takes other batches
