"""Rows of a video that was cut in pieces, put together again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

import numpy as np

Rows = TypeVar("Rows")


def join_rows(parts: Sequence[Rows], clips: Sequence[int]) -> Rows:
    """Rows of all parts, where the parts have the clips of these numbers, one after the other.

    Rows are arrays, or tuples or dataclasses of such.
    """
    joined: Rows = _join(parts, np.asarray(clips))
    return joined


def _join(parts: Sequence[Any], clips: Any) -> Any:
    first = parts[0]
    if isinstance(first, np.ndarray):
        mixed = np.concatenate(parts)
        ordered = np.empty_like(mixed)
        ordered[clips] = mixed
        return ordered
    if isinstance(first, tuple):
        return tuple(_join(each, clips) for each in zip(*parts, strict=True))
    assert is_dataclass(first)
    assert not isinstance(first, type)
    names = [field.name for field in fields(first)]
    return replace(
        first, **{name: _join([getattr(part, name) for part in parts], clips) for name in names}
    )
