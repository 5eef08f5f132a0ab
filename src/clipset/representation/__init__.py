"""Store + model → one table of vectors: what the walk is for."""

from clipset.representation.encode import CHUNK, encode_clips, join_parts, represent
from clipset.representation.table import (
    ALL_PARTS,
    PARTS,
    Part,
    Representations,
    nearest,
    read_parts,
    read_representations,
    write_representations,
)
from clipset.representation.windows import Span, cut_windows

__all__ = [
    "ALL_PARTS",
    "CHUNK",
    "PARTS",
    "Part",
    "Representations",
    "Span",
    "cut_windows",
    "encode_clips",
    "join_parts",
    "nearest",
    "read_parts",
    "read_representations",
    "represent",
    "write_representations",
]
