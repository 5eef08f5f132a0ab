"""Videos that have different numbers of clips: zeros fill up, and nothing may look at them."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

ValidMask = Bool[Tensor, "N V"] | None  # None: all videos have all clips


def by_number(
    rows: Float[Tensor, "N V R"], valid: ValidMask, at_once: int
) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, "B K R"]]]:
    """Videos with the same number of clips together, without the clips that are not there."""
    every = torch.arange(len(rows))
    if valid is None:
        yield from ((part, rows[part[0] : part[-1] + 1]) for part in every.split(at_once))
        return
    counts = valid.sum(dim=1)
    for count in counts.unique().tolist():
        for part in every[counts == count].split(at_once):
            yield part, rows[part][valid[part]].view(len(part), count, rows.shape[-1])
