"""Uploads: new videos to search with. Files are encoded and deleted; their vectors stay."""

from __future__ import annotations

import secrets
import threading
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

from clipset.data.catalog import Catalog, Video
from clipset.errors import SearchError, VideoError
from clipset.inference.run import TrainedRun
from clipset.retrieval import QueryExample, SearchIndex
from clipset.web.media import MediaLibrary
from clipset.web.models import MAX_UPLOAD_BYTES, MAX_UPLOAD_SECONDS, MAX_UPLOADS

MAX_WAITING_UPLOADS = 8  # that are being written or encoded


class Uploads:
    """Encodes one upload at a time; the oldest ones are forgotten."""

    def __init__(self, media: MediaLibrary, trained: TrainedRun, index: SearchIndex) -> None:
        self.media, self.trained, self.index = media, trained, index
        self._examples: OrderedDict[str, QueryExample] = OrderedDict()
        self._encoding = threading.Lock()
        self._num_waiting = 0

    def find(self, key: str) -> QueryExample:
        """The example of an upload."""
        example = self._examples.get(key)
        if example is None:
            raise SearchError(f"the upload {key!r} is not remembered; upload the file again")
        return example

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Count an upload; SearchError if there are too many at a time."""
        if self._num_waiting >= MAX_WAITING_UPLOADS:
            raise SearchError(
                f"{MAX_WAITING_UPLOADS} videos are being uploaded; try again in a minute"
            )
        self._num_waiting += 1
        try:
            yield
        finally:
            self._num_waiting -= 1

    async def receive(self, chunks: AsyncIterator[bytes], folder: Path) -> Path:
        """Write the body of a request to a file in a folder."""
        path, size = folder / "upload", 0
        with path.open("wb") as file:
            async for chunk in chunks:
                size += len(chunk)
                if size > MAX_UPLOAD_BYTES:
                    raise SearchError(f"a video may have at most {MAX_UPLOAD_BYTES:,} bytes")
                file.write(chunk)
        return path

    def encode(self, path: Path) -> tuple[str, float]:
        """Encode a file by the run's backbone and model, and remember it: its key and duration."""
        duration = self.media.read_duration(path)
        if duration > MAX_UPLOAD_SECONDS:
            raise VideoError(
                f"has {duration:.0f} s; a video to search with may have {MAX_UPLOAD_SECONDS:.0f} s"
            )
        video = Video(id="the upload", path=path)
        with self._encoding:
            table = self.trained.embed(Catalog(name="uploads", videos=(video,)))
        if table.failed:
            raise VideoError(table.failed[video.id])
        key = secrets.token_urlsafe(12)
        self._examples[key] = self.index.new_example(table)
        while len(self._examples) > MAX_UPLOADS:
            self._examples.popitem(last=False)
        return key, duration
