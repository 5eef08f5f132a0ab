"""clipset: learn from sets of clips, and get better video features from any frozen backbone."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipset.predict.run import load_run

__all__ = ["load_run"]


def __getattr__(name: str) -> Any:
    """Nothing heavy is imported before it is used."""
    if name == "load_run":
        from clipset.predict.run import load_run

        return load_run
    raise AttributeError(f"module 'clipset' has no attribute {name!r}")
