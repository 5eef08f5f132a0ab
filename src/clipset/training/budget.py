"""How long pre-training lasts if no number of epochs is set: until it stops paying.

The number of videos gives the largest number of steps. The learning rate stays at its peak and
falls to 0 in the last part of the training; that part begins earlier if the loss of held-out videos
is flat.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
from jaxtyping import Int

STEPS_PER_ROOT_VIDEO = 20  # steps grow with the root of the number of videos
FEWEST_STEPS = 300
PLATEAU = 0.7  # part of the steps before the learning rate falls
HELD_OUT_PART = 0.1
MIN_HELD_OUT, MAX_HELD_OUT = 16, 256  # with fewer videos, their loss says too little
MIN_OF_GROUP = 2  # held-out videos of a group: each is the other's negative
NUM_CHECKS = 40  # of the held-out loss in the largest number of epochs, if that is not less
MIN_CHECKS = 20  # before a loss counts as flat: what sets share is often learned late
FLAT_GAIN = 0.03  # of the whole fall of the loss, in the last third of the checks

LossCurve = Sequence[tuple[int, float]]  # epochs done, loss of the held-out videos


def count_max_epochs(num_videos: int, steps_per_epoch: int) -> int:
    """The largest number of epochs."""
    num_steps = max(FEWEST_STEPS, STEPS_PER_ROOT_VIDEO * math.sqrt(num_videos))
    return math.ceil(num_steps / steps_per_epoch)


def is_check_due(epoch: int, max_epochs: int) -> bool:
    """Whether the held-out loss is measured after an epoch: evenly spaced, from the first on."""
    num_checks = -(-epoch * NUM_CHECKS // max_epochs)
    return num_checks > -(-(epoch - 1) * NUM_CHECKS // max_epochs)


def find_plateau(curve: LossCurve, max_epochs: int) -> int:
    """The epochs before the learning rate falls: until the loss was flat, if it was."""
    plateau = math.ceil(PLATEAU * max_epochs)
    for count in range(MIN_CHECKS, len(curve) + 1):
        if is_flat([loss for _, loss in curve[:count]]):
            return min(plateau, curve[count - 1][0])
    return plateau


def count_planned_epochs(plateau: int, max_epochs: int) -> int:
    """The epochs of the whole training."""
    return min(max_epochs, math.ceil(plateau / PLATEAU))


def is_flat(losses: Sequence[float]) -> bool:
    """Whether the last third of the checks brought next to nothing."""
    split = len(losses) * 2 // 3
    before, after = min(losses[:split]), min(losses[split:])
    return before - after < FLAT_GAIN * (losses[0] - before)


def hold_out(groups: Int[np.ndarray, " N"], seed: int) -> Int[np.ndarray, " M"]:
    """The indices of the held-out videos: the same fraction of each group, or none at all.

    Of small groups, two videos of as many of them as are needed; two videos are left in each.
    """
    generator = np.random.default_rng([seed, len(groups)])
    fraction = min(HELD_OUT_PART, MAX_HELD_OUT / len(groups))
    num_needed = int(fraction * len(groups))
    names, sizes = np.unique(groups, return_counts=True)
    order = generator.permutation(len(names))
    held_out: list[int] = []
    for index in order[np.argsort(-sizes[order], kind="stable")]:
        videos = np.flatnonzero(groups == names[index])
        num_of_group = max(int(fraction * len(videos)), MIN_OF_GROUP)
        num_of_group = min(num_of_group, num_needed - len(held_out))
        if min(num_of_group, len(videos) - num_of_group) >= MIN_OF_GROUP:
            held_out += generator.permutation(videos)[:num_of_group].tolist()
    return np.array(sorted(held_out if len(held_out) >= MIN_HELD_OUT else []), dtype=np.int64)
