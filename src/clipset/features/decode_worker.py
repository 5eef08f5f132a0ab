"""The worker process that decodes videos; DecodeWorker in decode_pool.py starts and drives it."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path

import msgspec

from clipset.clips.decode import DecodedClips, DecodeRequest, decode_video
from clipset.process.worker import Answer, answer_messages

DecodeTask = tuple[str, bytes, float | None, int] | None
"""The id, path, end and draw of a video; None for the next chunk of the previous one."""


def make_decoder(setup: bytes) -> Callable[[bytes], Answer]:
    """Decodes chunk after chunk: the facts of the chunk, and its arrays as bytes."""
    request = msgspec.json.decode(setup, type=DecodeRequest)
    chunks: Iterator[DecodedClips] = iter(())

    def decode(line: bytes) -> Answer:
        nonlocal chunks
        task = msgspec.json.decode(line, type=DecodeTask)
        if task is not None:
            video_id, path, end, draw = task
            file = Path(os.fsdecode(path))
            chunks = iter(decode_video(video_id, file, request, end=end, draw=draw))
        clips = next(chunks)
        return clips.facts, clips.to_buffers()

    return decode


def main() -> None:
    """Serve on standard input and output."""
    import torch

    torch.set_num_threads(1)
    answer_messages(make_decoder)


if __name__ == "__main__":
    main()
