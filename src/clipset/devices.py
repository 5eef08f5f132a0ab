"""The device that a network runs on."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from clipset.errors import ConfigError

if TYPE_CHECKING:
    import torch


def check_device_name(name: str) -> None:
    """Refuse a name that no device has; whether this machine has it is not checked."""
    if not re.fullmatch(r"auto|cpu|cuda(:[0-9]+)?|mps", name):
        raise ConfigError(f"unknown device {name!r}; known: auto, cpu, cuda, mps, cuda:N")


def find_device(name: str) -> torch.device:
    """The torch device of a name; `auto` is the fastest one here."""
    import torch

    check_device_name(name)
    device_type, _, device_index = name.partition(":")
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    has_mps = torch.backends.mps.is_available()
    if device_type == "auto":
        return torch.device("cuda" if cards else "mps" if has_mps else "cpu")
    if device_type == "cuda" and int(device_index or 0) >= cards:
        raise ConfigError(f"CUDA device {name!r} not found ({cards} available); use device 'cpu'")
    if device_type == "mps" and not has_mps:
        raise ConfigError("MPS is not available; use device 'cpu'")
    return torch.device(name)
