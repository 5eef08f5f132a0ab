"""Tensors from files of any name; safetensors itself opens those alone whose names are UTF-8."""

from __future__ import annotations

from pathlib import Path

from safetensors.torch import load
from torch import Tensor


def load_file(path: Path) -> dict[str, Tensor]:
    """The tensors in a file."""
    return load(path.read_bytes())
