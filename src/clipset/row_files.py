"""Arrays in files: a .npy file that grows by rows, and a temporary one."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from clipset.errors import StoreError

HEADER_BYTES = 256


class GrowingArray:
    """Rows of one shape and type on disk; the caller knows how many of them are valid."""

    def __init__(self, path: Path, row_shape: tuple[int, ...], dtype: DTypeLike) -> None:
        self.path, self.row_shape, self.dtype = path, row_shape, np.dtype(dtype)
        self.row_bytes = int(np.prod(row_shape)) * self.dtype.itemsize
        self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)

    def write(self, first_row: int, rows: NDArray[np.generic]) -> None:
        """Write rows at an index."""
        if rows.shape[1:] != self.row_shape:
            raise StoreError(f"{self.path.name} takes rows {self.row_shape}, got {rows.shape[1:]}")
        content = memoryview(np.ascontiguousarray(rows, dtype=self.dtype).data).cast("B")
        byte_position = HEADER_BYTES + first_row * self.row_bytes
        while content:
            num_written = os.pwrite(self._file, content, byte_position)
            byte_position, content = byte_position + num_written, content[num_written:]

    def finish(self, num_rows: int) -> None:
        """Truncate the file to the valid rows and write their number in the header."""
        os.ftruncate(self._file, HEADER_BYTES + num_rows * self.row_bytes)
        os.pwrite(self._file, npy_header((num_rows, *self.row_shape), self.dtype), 0)

    def sync(self) -> None:
        """Wait until the rows are on disk."""
        os.fsync(self._file)

    def __enter__(self) -> GrowingArray:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._file)


def npy_header(shape: tuple[int, ...], dtype: np.dtype[np.generic]) -> bytes:
    """A version 1.0 header of fixed length, so that the shape can change in place."""
    described = repr({"descr": dtype.str, "fortran_order": False, "shape": shape})
    text = described.ljust(HEADER_BYTES - 11) + "\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text.encode("latin1")


def open_rows(
    path: Path, num_rows: int, row_shape: tuple[int, ...], dtype: DTypeLike
) -> NDArray[np.generic]:
    """A read-only memory map of the first `num_rows` rows."""
    if num_rows == 0:
        return np.empty((0, *row_shape), dtype)
    needed_bytes = HEADER_BYTES + num_rows * int(np.prod(row_shape)) * np.dtype(dtype).itemsize
    num_bytes = path.stat().st_size if path.is_file() else 0
    if num_bytes < needed_bytes:
        raise StoreError(
            f"{path} has {num_bytes} bytes where {needed_bytes} are recorded; run `clipset repair`"
        )
    return np.memmap(path, dtype, "r", offset=HEADER_BYTES, shape=(num_rows, *row_shape))


def open_all_rows(path: Path, row_shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[np.generic]:
    """A read-only memory map of all whole rows in a file, damaged or not."""
    row_bytes = int(np.prod(row_shape)) * np.dtype(dtype).itemsize
    num_bytes = path.stat().st_size if path.is_file() else 0
    return open_rows(path, max(num_bytes - HEADER_BYTES, 0) // row_bytes, row_shape, dtype)


def has_header(path: Path, num_rows: int, row_shape: tuple[int, ...], dtype: DTypeLike) -> bool:
    """Whether the header of a file states its shape and dtype."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return file.read(HEADER_BYTES) == npy_header((num_rows, *row_shape), np.dtype(dtype))


def temporary_array(shape: tuple[int, ...], dtype: DTypeLike) -> np.memmap[Any, Any]:
    """An array of zeros in a temporary file, which is gone with the array."""
    with tempfile.TemporaryFile() as file:
        return np.memmap(file, dtype, "w+", shape=shape)
