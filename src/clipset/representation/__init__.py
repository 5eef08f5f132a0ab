"""Vectors of a store's videos, and the table on disk."""

from clipset.representation.encode import (
    concat_parts,
    embed_store,
    encode_clips,
    pad_clips,
    part_widths,
)
from clipset.representation.table import (
    DEFAULT_PARTS,
    PAPER_PARTS,
    VectorPart,
    VectorTable,
    check_vectors_folder,
    nearest,
    parse_parts,
    read_vectors,
    write_vectors,
)
from clipset.representation.time_course import course_widths, video_vectors

__all__ = [
    "DEFAULT_PARTS", "PAPER_PARTS", "VectorPart", "VectorTable", "check_vectors_folder",
    "concat_parts", "course_widths", "embed_store", "encode_clips", "nearest", "pad_clips",
    "parse_parts", "part_widths", "read_vectors", "video_vectors", "write_vectors",
]  # fmt: skip
