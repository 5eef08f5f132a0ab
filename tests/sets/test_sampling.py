"""Laws of drawing sets, masks and batches."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from clipset.sets.batch import ClipBatch
from clipset.sets.sampling import (
    MaskRule,
    SetPair,
    draw_batches,
    draw_batches_by_group,
    draw_mask,
    draw_set_indices,
    draw_subset,
    mix_means,
)

seeds = st.integers(0, 2**31)


def numbered_clips(videos: int, clips: int) -> ClipBatch:
    """Clips whose only feature is their own number."""
    numbers = torch.arange(videos * clips, dtype=torch.float32).view(videos, clips, 1)
    return ClipBatch(numbers, numbers.expand(-1, -1, 6).clone())


def draw_set_pair(
    clips: ClipBatch, clips_per_set: int, mask_ratio: float, generator: torch.Generator
) -> SetPair:
    """Two sets with the features and boxes of their clips."""
    sets = draw_set_indices(
        len(clips), clips.num_clips, clips_per_set, mask_ratio, generator, valid=clips.valid
    )
    clip_index = (torch.arange(len(clips))[None, :, None], sets.clip_index)
    features, boxes = clips.features[clip_index], clips.boxes[clip_index]
    return SetPair(features, boxes, sets.masked, sets.valid)


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 5), st.integers(2, 6), st.integers(0, 4), st.integers(0, 2**31))
def test_two_sets_share_no_clip(videos: int, clips_per_set: int, spare: int, seed: int) -> None:
    clips = numbered_clips(videos, 2 * clips_per_set + spare)
    pair = draw_set_pair(clips, clips_per_set, 0.25, torch.Generator().manual_seed(seed))
    for video in range(videos):
        drawn = pair.features[:, video].flatten().tolist()
        assert len(set(drawn)) == 2 * clips_per_set
        assert set(drawn) <= set(clips.features[video].flatten().tolist())
    assert torch.equal(pair.features.expand_as(pair.boxes), pair.boxes)


@settings(max_examples=30, deadline=None)
@given(st.integers(2, 12), st.floats(0.01, 0.99), st.integers(0, 2**31))
def test_the_number_of_masked_clips_is_the_ratio_rounded_up_or_down(
    clips_per_set: int, ratio: float, seed: int
) -> None:
    masked = draw_mask(4, clips_per_set, ratio, torch.Generator().manual_seed(seed))
    expected = ratio * clips_per_set
    assert (masked.sum(dim=-1) - expected).abs().max() < 1


@pytest.mark.parametrize("mask_rule", ["count", "bernoulli"])
@pytest.mark.parametrize("clips_per_set", [4, 6, 8])
@settings(max_examples=20, deadline=None)
@given(ratio=st.sampled_from([0.15, 0.2, 0.25, 0.35, 0.45]) | st.floats(0.01, 0.99), seed=seeds)
def test_the_mean_fraction_of_masked_clips_is_the_mask_ratio(
    clips_per_set: int, mask_rule: MaskRule, ratio: float, seed: int
) -> None:
    """Six deviations of a mean over 40,000 clips or more."""
    generator = torch.Generator().manual_seed(seed)
    masked = draw_mask(5000, clips_per_set, ratio, generator, mask_rule=mask_rule)
    assert masked.double().mean().item() == pytest.approx(ratio, abs=0.015)


@settings(max_examples=20, deadline=None)
@given(counts=st.lists(st.integers(1, 8), min_size=1, max_size=4), seed=seeds)
def test_the_mean_fraction_of_valid_clips_is_the_mask_ratio_too(
    counts: list[int], seed: int
) -> None:
    valid = torch.arange(8) < torch.tensor(counts * 5000)[:, None]
    generator = torch.Generator().manual_seed(seed)
    masked = draw_mask(len(valid), 8, 0.35, generator, valid=valid.expand(2, -1, -1))
    assert not (masked & ~valid).any()
    for count in counts:
        own = masked[:, valid.sum(dim=1) == count][..., :count]
        assert own.double().mean().item() == pytest.approx(0.35, abs=0.03)


@pytest.mark.parametrize(
    ("clips_per_set", "ratio"), [(8, 0.25), (4, 0.25), (3, 1 / 3), (100, 0.29)]
)
def test_a_whole_number_of_masked_clips_needs_no_rounding_and_no_draw(
    clips_per_set: int, ratio: float
) -> None:
    generator, other = (torch.Generator().manual_seed(3) for _ in range(2))
    masked = draw_mask(16, clips_per_set, ratio, generator)
    assert masked.sum(dim=-1).unique().tolist() == [round(ratio * clips_per_set)]
    torch.rand(2, 16, clips_per_set, generator=other)
    assert torch.equal(generator.get_state(), other.get_state())


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 200), st.integers(1, 64), st.integers(0, 2**31))
def test_an_epoch_shows_every_video_once(videos: int, batch: int, seed: int) -> None:
    batches = draw_batches(videos, batch, torch.Generator().manual_seed(seed))
    assert sorted(torch.cat(batches).tolist()) == list(range(videos))
    assert max(map(len, batches)) <= batch
    assert max(map(len, batches)) - min(map(len, batches)) <= 1


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(0, 4), min_size=1, max_size=60), st.integers(1, 16), st.integers(0, 99))
def test_batches_by_group_show_every_video_once_and_never_mix_groups(
    groups: list[int], batch: int, seed: int
) -> None:
    numbers = torch.tensor(groups)
    batches = draw_batches_by_group(numbers, batch, torch.Generator().manual_seed(seed))
    assert sorted(torch.cat(batches).tolist()) == list(range(len(groups)))
    assert all(len(part) <= batch and numbers[part].unique().numel() == 1 for part in batches)


def test_the_same_seed_draws_the_same_sets() -> None:
    clips = numbered_clips(3, 16)
    one, two = (draw_set_pair(clips, 8, 0.25, torch.Generator().manual_seed(5)) for _ in range(2))
    assert torch.equal(one.features, two.features)
    assert torch.equal(one.masked, two.masked)


def test_a_subset_holds_different_clips_of_its_own_video() -> None:
    clips = numbered_clips(4, 10)
    subset = draw_subset(clips, 6, torch.Generator().manual_seed(0))
    for video in range(4):
        drawn = subset.features[video].flatten().tolist()
        assert len(set(drawn)) == 6
        assert set(drawn) <= set(clips.features[video].flatten().tolist())


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(4, 12), min_size=1, max_size=5), st.integers(0, 2**31))
def test_sets_of_videos_with_few_clips_share_them_evenly(counts: list[int], seed: int) -> None:
    plain = numbered_clips(len(counts), 12)
    valid = torch.arange(12) < torch.tensor(counts)[:, None]
    clips = ClipBatch(plain.features, plain.boxes, valid=valid)
    pair = draw_set_pair(clips, 4, 0.25, torch.Generator().manual_seed(seed))
    assert pair.valid is not None
    assert not (pair.masked & ~pair.valid).any()
    for video, count in enumerate(counts):
        drawn = pair.features[:, video][pair.valid[:, video]].flatten().tolist()
        assert len(drawn) == len(set(drawn)) == min(count, 8)
        assert set(drawn) <= set(plain.features[video, :count].flatten().tolist())
        sizes = pair.valid[:, video].sum(dim=1)
        assert abs(int(sizes[0] - sizes[1])) <= 1
        num_masked = pair.masked[:, video].sum(dim=1)
        assert bool(((num_masked - 0.25 * sizes).abs() < 1).all())


def test_a_coin_hides_each_clip_with_the_same_chance() -> None:
    masked = draw_mask(2000, 8, 0.25, torch.Generator().manual_seed(0), mask_rule="bernoulli")
    counts = masked.sum(dim=-1)
    assert abs(masked.float().mean().item() - 0.25) < 0.01
    assert counts.min() == 0
    assert counts.unique().numel() > 4


@settings(max_examples=30, deadline=None)
@given(st.integers(1, 6), st.integers(1, 5), st.integers(0, 2**31))
def test_mixing_means_moves_a_video_towards_another_and_changes_nothing_within_it(
    videos: int, clips: int, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(videos, clips, 3, generator=generator)
    clips_before = ClipBatch(features, features.repeat(1, 1, 2))
    mixed = mix_means(clips_before, generator)
    before, after = clips_before.features, mixed.features
    means, moved = before.mean(dim=1), after.mean(dim=1)
    assert torch.allclose(before - means[:, None], after - moved[:, None], atol=1e-5)
    for video in range(videos):
        ways = means - means[video]  # to every video, its own included
        went = (moved - means)[video]
        lengths = ways.pow(2).sum(dim=1).clamp_min(1e-12)
        fractions = (ways * went).sum(dim=1) / lengths
        left = (went - fractions[:, None] * ways).norm(dim=1)
        assert bool(((left < 1e-4) & (fractions > -1e-4) & (fractions < 1 + 1e-4)).any())
    assert mixed.boxes is clips_before.boxes
