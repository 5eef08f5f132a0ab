"""The device that a network runs on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from clipset.errors import ConfigError

if TYPE_CHECKING:
    import torch

DEVICES = ("auto", "cpu", "cuda", "mps")


def check_device_name(name: str) -> None:
    """Refuse a name that no device has; whether this machine has it is not checked."""
    kind, colon, number = name.partition(":")
    if kind not in DEVICES or (colon and not (kind == "cuda" and number.isdecimal())):
        raise ConfigError(f"unknown device {name!r}; known: {', '.join(DEVICES)}, cuda:N")


def find_device(name: str) -> torch.device:
    """The torch device of a name; `auto` is the fastest one here."""
    import torch

    check_device_name(name)
    kind, _, number = name.partition(":")
    cards = torch.cuda.device_count() if torch.cuda.is_available() else 0
    apple = torch.backends.mps.is_available()
    if kind == "auto":
        return torch.device("cuda" if cards else "mps" if apple else "cpu")
    if kind == "cuda" and int(number or 0) >= cards:
        raise ConfigError(f"CUDA device {name!r} not found ({cards} available); use device 'cpu'")
    if kind == "mps" and not apple:
        raise ConfigError("MPS is not available; use device 'cpu'")
    return torch.device(name)
