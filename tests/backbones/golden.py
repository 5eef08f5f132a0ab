"""Golden features and keys of the released backbones, and a file that a trap is in."""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

GOLDEN = Path(__file__).parents[1] / "golden"


class Trap:
    """What a hostile file holds: unpickling it makes a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.mkdir, (str(self.folder),)


def read_golden(name: str) -> dict[str, Tensor]:
    """The clips and the expected features of a tiny checkpoint."""
    with np.load(GOLDEN / name / "golden.npz") as arrays:
        return {key: torch.from_numpy(arrays[key]) for key in arrays}


def full_size_keys(name: str) -> dict[str, Tensor]:
    """The keys of a released file, with tensors that have a shape only."""
    text = gzip.decompress((GOLDEN / "keys" / f"{name}.tsv.gz").read_bytes()).decode()
    rows = (line.split("\t") for line in text.splitlines())
    shapes = {key: [int(n) for n in shape.split(",") if n] for key, shape in rows}
    return {key: torch.empty(shape, device="meta") for key, shape in shapes.items()}


def features(network: nn.Module, clips: Tensor) -> Tensor:
    """The features of golden clips (B, 3, T, S, S)."""
    with torch.inference_mode():
        found: Tensor = network.eval()(clips.transpose(1, 2))
        return found
