"""clipset: learn from sets of clips, and get better video features from any frozen backbone."""

from typing import Any

__all__ = ["from_pretrained", "save_pretrained"]


def __getattr__(name: str) -> Any:
    """Models by name; torch is imported only when one is asked for."""
    if name not in __all__:
        raise AttributeError(f"module 'clipset' has no attribute {name!r}")
    from clipset.training import checkpoint

    return getattr(checkpoint, name)
