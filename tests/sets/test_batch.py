"""Laws of reading clips where videos have different numbers of them."""

from __future__ import annotations

from pathlib import Path
from random import Random

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.conftest import record_rows
from tests.sets.test_sampling import draw_set_pair, numbered_clips

from clipset.features.config import ImportConfig
from clipset.features.importers import catalog_of_features, import_features
from clipset.features.ledger import Kind, LedgerEntry
from clipset.features.store import ClipTable, FeatureStore, open_store
from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.representation import (
    VectorTable,
    embed_store,
    encode_clips,
    read_vectors,
    write_vectors,
)
from clipset.representation.time_course import time_course
from clipset.sets.batch import (
    ClipBatch,
    mean_over_clips,
)
from clipset.sets.reading import read_clips
from clipset.sets.sampling import draw_subset
from clipset.sets.stored_clips import equal_chunks

COUNTS = st.lists(st.integers(1, 6), min_size=1, max_size=6)


def table_of(counts: list[int]) -> ClipTable:
    """A table whose only feature is the row's own number, from 1 on."""
    rows = sum(counts)
    count = np.array(counts, dtype=np.int64)
    return ClipTable(
        features=np.arange(1, rows + 1, dtype=np.float32)[:, None],
        boxes=np.tile(np.array([0, 1, 0, 0, 1, 1, 0], np.float32), (rows, 1)),
        times=np.zeros((rows, 1), np.float32),
        first=np.cumsum(count) - count,
        count=count,
    )


class TableStore(FeatureStore):
    """A store that is nothing but a table of videos of one second."""

    def __init__(self, table: ClipTable) -> None:
        self.clip_table = table
        count = len(table.count)
        self.entries = [LedgerEntry(ordinal=n, id=str(n), duration=1.0) for n in range(count)]

    def table(self, kind: Kind) -> ClipTable:
        assert kind == "random"
        return self.clip_table


def ragged(counts: list[int], width: int = 6) -> ClipBatch:
    """Clips numbered from 1 on; padding is 0 and comes last."""
    clips = numbered_clips(len(counts), width)
    valid = torch.arange(width) < torch.tensor(counts)[:, None]
    features = torch.where(valid[..., None], clips.features + 1, 0.0)
    return ClipBatch(features, features.expand(-1, -1, 6).clone(), valid=valid)


@settings(max_examples=40, deadline=None)
@given(COUNTS, st.randoms(use_true_random=False))
def test_the_rows_of_some_videos_are_theirs_and_padding_is_marked(
    counts: list[int], order: Random
) -> None:
    table = table_of(counts)
    videos = np.array(order.sample(range(len(counts)), order.randint(1, len(counts))))
    rows = table.row_indices(videos)
    assert rows.shape == (len(videos), max(counts[video] for video in videos))
    for video, row in zip(videos.tolist(), rows, strict=True):
        first = sum(counts[:video])
        assert row[row >= 0].tolist() == list(range(first, first + counts[video]))
        assert (row[counts[video] :] == -1).all()


@settings(max_examples=40, deadline=None)
@given(COUNTS, st.randoms(use_true_random=False))
def test_clips_that_are_read_are_those_of_the_table_and_zeros(
    counts: list[int], order: Random
) -> None:
    table = table_of(counts)
    store = TableStore(table)
    videos = np.array(order.sample(range(len(counts)), order.randint(1, len(counts))))
    clips = read_clips(store, "random", videos)
    assert clips.counts.tolist() == [counts[video] for video in videos]
    equal = len({counts[video] for video in videos}) == 1
    assert (clips.valid is None) == equal
    for index, video in enumerate(videos.tolist()):
        first, count = sum(counts[:video]), counts[video]
        features = clips.features[index, :, 0].tolist()
        assert features[:count] == list(range(first + 1, first + count + 1))
        assert not any(features[count:])
        assert not clips.boxes[index, count:].any()
    some = clips.select(torch.tensor([len(videos) - 1])).to(torch.device("cpu"))
    assert some.counts.tolist() == [counts[videos[-1]]]


@settings(max_examples=40, deadline=None)
@given(st.lists(st.integers(4, 9), min_size=1, max_size=5), st.integers(0, 2**31))
def test_padding_is_never_drawn(counts: list[int], seed: int) -> None:
    clips = ragged(counts, 9)
    pair = draw_set_pair(clips, 2, 0.5, torch.Generator().manual_seed(seed))
    subset = draw_subset(clips, 5, torch.Generator().manual_seed(seed))
    assert subset.features.shape[1] == min(5, *counts)
    for video, count in enumerate(counts):
        own = set(clips.features[video, :count].flatten().tolist())
        for drawn in (pair.features[:, video], subset.features[video]):
            numbers = drawn.flatten().tolist()
            assert len(set(numbers)) == len(numbers)
            assert set(numbers) <= own


@settings(max_examples=20, deadline=None)
@given(st.integers(1, 4), st.integers(4, 9), st.integers(0, 2**31))
def test_where_all_are_present_the_draw_is_the_very_same(
    videos: int, clips: int, seed: int
) -> None:
    plain = numbered_clips(videos, clips)
    marked = ClipBatch(
        plain.features, plain.boxes, valid=torch.ones(videos, clips, dtype=torch.bool)
    )
    generators = [torch.Generator().manual_seed(seed) for _ in range(3)]
    old = torch.rand(videos, clips, generator=generators[2]).argsort(dim=1)[:, :4]
    for batch, generator in zip((plain, marked), generators[:2], strict=True):
        pair = draw_set_pair(batch, 2, 0.5, generator)
        expected = plain.features[torch.arange(videos)[:, None], old].view(videos, 2, 2, 1)
        assert torch.equal(pair.features, expected.transpose(0, 1))
    assert torch.equal(*(torch.rand(3, generator=generator) for generator in generators[:2]))


@settings(max_examples=30, deadline=None)
@given(COUNTS)
def test_means_and_groups_leave_padding_out(counts: list[int]) -> None:
    clips = ragged(counts)
    means = mean_over_clips(clips.features, clips.valid)
    grouped = []
    for videos, group in equal_chunks(clips, 2):
        assert group.valid is None
        torch.testing.assert_close(means[videos], group.features.mean(dim=1))
        grouped += videos.tolist()
    assert sorted(grouped) == list(range(len(counts)))
    assert clips.valid_features().mean().item() == pytest.approx(
        clips.features.sum().item() / sum(counts)
    )


def test_a_video_is_encoded_as_if_no_longer_one_stood_beside_it() -> None:
    clips = ragged([6, 2, 6, 3])
    torch.manual_seed(0)
    encoder = SetEncoder(1, ModelConfig(width=32, num_layers=1))
    vectors = encode_clips(encoder, clips)
    for video, count in enumerate([6, 2, 6, 3]):
        alone = ClipBatch(clips.features[[video], :count], clips.boxes[[video], :count])
        torch.testing.assert_close(vectors[video, :count], encode_clips(encoder, alone)[0])
        assert not vectors[video, count:].any()


@pytest.fixture
def store(tmp_path: Path) -> FeatureStore:
    """Three videos of 4 clips of which the ledger then says that one has 3."""
    (tmp_path / "source").mkdir()
    for name in "abc":
        rows = np.random.default_rng(ord(name)).normal(size=(4, 3)).astype(np.float32)
        np.save(tmp_path / "source" / f"{name}.npy", rows)
    folder = tmp_path / "store"
    import_features(
        tmp_path / "source",
        folder,
        catalog_of_features(tmp_path / "source"),
        ImportConfig(dtype="float32"),
    )
    record_rows(folder, {1: {"regular_count": 3}})
    return open_store(folder)


def test_a_store_with_unequal_counts_is_read_and_represented(
    store: FeatureStore, tmp_path: Path
) -> None:
    assert store.regular.count.tolist() == [4, 3, 4]
    clips = read_clips(store, "regular", np.arange(3))
    assert clips.counts.tolist() == [4, 3, 4]
    table: VectorTable = embed_store(store, None)
    expected = time_course(clips.features[1:2, :3])[0]  # without the padding
    np.testing.assert_allclose(table.pooled[1], expected, rtol=1e-6)
    write_vectors(table, tmp_path / "vectors")
    again = read_vectors(tmp_path / "vectors")
    np.testing.assert_array_equal(again.pooled, table.pooled)
