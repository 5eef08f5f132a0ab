"""Vectors of a store's videos, and the table on disk."""

from clipset.representation.encode import CHUNK_SIZE, concat_parts, embed_store, encode_clips
from clipset.representation.table import (
    DEFAULT_PARTS,
    VECTOR_PARTS,
    VectorPart,
    VectorTable,
    nearest,
    parse_parts,
    read_vectors,
    write_vectors,
)
from clipset.representation.windows import Span, cut_windows

__all__ = [
    "CHUNK_SIZE",
    "DEFAULT_PARTS",
    "VECTOR_PARTS",
    "Span",
    "VectorPart",
    "VectorTable",
    "concat_parts",
    "cut_windows",
    "embed_store",
    "encode_clips",
    "nearest",
    "parse_parts",
    "read_vectors",
    "write_vectors",
]
