"""The architectures of the backbones, pure PyTorch."""

from __future__ import annotations

from collections import OrderedDict

from torch import nn


def named_sequential(**modules: nn.Module) -> nn.Sequential:
    """Modules in a row, under the names of a checkpoint."""
    return nn.Sequential(OrderedDict(modules))
