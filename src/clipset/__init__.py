"""clipset: learn from sets of clips, and get better video features from any frozen backbone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipset.inference.run import load_run
    from clipset.training.checkpoint import ScaleModel

__all__ = ["ScaleModel", "load_run"]
_WHERE = {
    "ScaleModel": "clipset.training.checkpoint",
    "load_run": "clipset.inference.run",
}


def __getattr__(name: str) -> Any:
    """Nothing heavy is imported before it is used."""
    if name not in _WHERE:
        raise AttributeError(f"module 'clipset' has no attribute {name!r}")
    return getattr(import_module(_WHERE[name]), name)
