"""ClipBox: the position of a clip in time and space."""

from __future__ import annotations

from dataclasses import astuple, dataclass, fields

from clipset.errors import ClipError


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipBox:
    """A box in time (seconds) and space (fractions of the frame)."""

    start: float
    end: float
    top: float = 0.0
    left: float = 0.0
    bottom: float = 1.0
    right: float = 1.0
    flipped: bool = False

    def __post_init__(self) -> None:
        if not self.start < self.end:
            raise ClipError(f"a clip must end after it starts, got {self.start} s to {self.end} s")
        if not 0.0 <= self.top < self.bottom <= 1.0:
            raise ClipError(f"a clip needs 0 <= top < bottom <= 1, got {self.top} to {self.bottom}")
        if not 0.0 <= self.left < self.right <= 1.0:
            raise ClipError(f"a clip needs 0 <= left < right <= 1, got {self.left} to {self.right}")

    def as_row(self) -> tuple[float, ...]:
        """The row of a store, in the order of BOX_COLUMNS."""
        return tuple(float(value) for value in astuple(self))


BOX_COLUMNS = tuple(field.name for field in fields(ClipBox))
