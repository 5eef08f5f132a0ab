"""Changes of colour against the same done pixel by pixel."""

import colorsys
import math
from pathlib import Path

import numpy as np
import pytest
import torch
from tests.clips.test_presets import STRONG
from torch import Tensor

from clipset.clips.box import ClipBox
from clipset.clips.colour import ColourChange, change_colours, draw_colour_change
from clipset.clips.config import Augmentation
from clipset.clips.cut import cut_clips
from clipset.clips.sampling import ClipPlan
from clipset.decoding.reader import open_video
from clipset.errors import ClipError


def noise(seed: int = 0, size: int = 9) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8, generator=generator)


def pixel_by_pixel(clip: Tensor, change: ColourChange) -> Tensor:
    """Brightness, contrast, saturation and hue in the given order, with plain numbers."""
    done = np.empty(clip.shape)
    for frame, pixels in enumerate(clip.permute(0, 2, 3, 1).double().numpy() / 255):
        colours = [tuple(pixel) for pixel in pixels.reshape(-1, 3)]
        for step in change.order:
            mean = sum(grey(*colour) for colour in colours) / len(colours)
            colours = [changed(colour, step, change, mean) for colour in colours]
        done[frame] = np.array(colours).reshape(pixels.shape).transpose(2, 0, 1)
    return torch.from_numpy(done * 255)


def grey(red: float, green: float, blue: float) -> float:
    return 0.299 * red + 0.587 * green + 0.114 * blue


def changed(
    colour: tuple[float, ...], step: str, change: ColourChange, mean: float
) -> tuple[float, ...]:
    if step == "hue":
        hue, saturation, value = colorsys.rgb_to_hsv(*colour)
        return colorsys.hsv_to_rgb((hue + change.hue) % 1, saturation, value)
    anchor = {"brightness": 0.0, "contrast": mean, "saturation": grey(*colour)}[step]
    strength = getattr(change, step)
    return tuple(min(max(anchor + (part - anchor) * strength, 0), 1) for part in colour)


CHANGES = [
    ColourChange(brightness=1.4),
    ColourChange(contrast=0.5),
    ColourChange(saturation=1.6),
    ColourChange(hue=0.15),
    ColourChange(hue=-0.4),
    ColourChange(
        brightness=0.6,
        contrast=1.5,
        saturation=0.3,
        hue=0.1,
        order=("hue", "saturation", "brightness", "contrast"),
    ),
]


@pytest.mark.parametrize("change", CHANGES, ids=str)
def test_jitter_equals_jitter_pixel_by_pixel(change: ColourChange) -> None:
    clip = noise()
    clip[0, :, 0, 0] = 128  # a grey pixel has no hue
    found = change_colours(clip, change)
    assert not torch.equal(found, clip)
    torch.testing.assert_close(found.double(), pixel_by_pixel(clip, change), rtol=0, atol=0.51)


def test_a_grey_clip_has_three_equal_channels() -> None:
    clip = noise()
    found = change_colours(clip, ColourChange(grey=True))
    assert torch.equal(found[:, 0], found[:, 1])
    assert torch.equal(found[:, 0], found[:, 2])
    assert abs(int(found[0, 0, 2, 3]) - grey(*clip[0, :, 2, 3].tolist())) <= 0.51


def test_blur_spreads_a_point_as_a_bell_and_leaves_plain_ground() -> None:
    clip = torch.zeros(1, 3, 21, 21, dtype=torch.uint8)
    clip[..., 10, 10] = 255
    found = change_colours(clip, ColourChange(blur=1.5))[0, 0].double()
    bell = [math.exp(-0.5 * (place / 1.5) ** 2) for place in range(-5, 6)]
    for row in range(5, 16):
        for column in range(5, 16):
            expected = 255 * bell[row - 5] * bell[column - 5] / sum(bell) ** 2
            assert found[row, column].item() == pytest.approx(expected, abs=0.51)
    plain = torch.full((1, 3, 8, 8), 77, dtype=torch.uint8)
    assert torch.equal(change_colours(plain, ColourChange(blur=2.0)), plain)


@pytest.mark.parametrize("size", [1, 2, 5])
def test_clips_smaller_than_the_blur_can_be_blurred(size: int) -> None:
    assert change_colours(noise(size=size), ColourChange(blur=2.0)).shape[-1] == size


def test_a_change_of_nothing_leaves_every_pixel() -> None:
    clip = noise()
    assert torch.equal(change_colours(clip, ColourChange()), clip)


def test_changes_are_drawn_as_often_and_as_far_as_asked() -> None:
    generator = np.random.default_rng(0)
    drawn = [draw_colour_change(STRONG, generator) for _ in range(2000)]
    assert np.mean([change.brightness != 1 for change in drawn]) == pytest.approx(0.8, abs=0.03)
    assert np.mean([change.grey for change in drawn]) == pytest.approx(0.2, abs=0.03)
    assert np.mean([change.blur > 0 for change in drawn]) == pytest.approx(0.5, abs=0.04)
    assert min(change.contrast for change in drawn) == pytest.approx(0.4, abs=0.01)
    assert max(change.saturation for change in drawn) == pytest.approx(1.6, abs=0.01)
    assert max(abs(change.hue) for change in drawn) == pytest.approx(0.15, abs=0.01)
    assert max(change.blur for change in drawn) <= 2.0
    assert len({change.order for change in drawn}) == 24


def test_colours_left_alone_draw_a_change_of_nothing() -> None:
    change = draw_colour_change(Augmentation(), np.random.default_rng(0))
    assert change == ColourChange(order=change.order)


@pytest.mark.parametrize("wrong", [{"order": ("hue",)}, {"blur": -1.0}])
def test_a_change_that_cannot_be_is_refused(wrong: dict[str, object]) -> None:
    with pytest.raises(ClipError):
        ColourChange(**wrong)  # type: ignore[arg-type]


def test_only_the_clips_that_the_plan_colours_are_changed(small_videos: Path) -> None:
    path = next(iter(sorted(small_videos.rglob("*.mp4"))))
    boxes = (ClipBox(start=0.0, end=0.5),) * 2
    frames = np.array([[0, 3], [0, 3]])
    change = ColourChange(grey=True, blur=1.0)
    plain_plan = ClipPlan(boxes=boxes, frame_indices=frames)
    coloured_plan = ClipPlan(boxes=boxes, frame_indices=frames, colour_changes=(None, change))
    with open_video(path) as video:
        plain = cut_clips(video, plain_plan, 24)
        coloured = cut_clips(video, coloured_plan, 24)
    assert torch.equal(coloured[0], plain[0])
    assert torch.equal(coloured[1], change_colours(plain[1], change))
    assert not torch.equal(coloured[1], plain[1])
