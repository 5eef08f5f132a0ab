"""What can happen to a file while it is read, brought about at the worst moment.

A worker process calls `serve` for the same.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from clipset.clips import decode
from clipset.decoding import demux
from clipset.decoding.reader import VideoReader, open_video
from clipset.features import decode_pool


def spoil(patch: Callable[[Any, str, Any], None]) -> None:
    """Files named `changes…` are overwritten once they are open; `unreadable…` is never ours."""

    @contextmanager
    def open_and_change(path: Path, **how: Any) -> Iterator[VideoReader]:
        with open_video(path, **how) as reader:
            if path.name.startswith("changes"):
                path.write_bytes(b"something else")
            yield reader

    access = os.access

    def may(path: Path, mode: int) -> bool:
        return not path.name.startswith("unreadable") and access(path, mode)

    patch(decode, "open_video", open_and_change)
    patch(demux.os, "access", may)


def serve() -> None:
    """A worker to whose files this happens."""
    spoil(setattr)
    decode_pool.run_worker()
