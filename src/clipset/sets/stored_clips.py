"""Clips of a task: in memory, or read from the store as they are needed if they are too many."""

from __future__ import annotations

from collections.abc import Iterator
from functools import reduce
from typing import TypeAlias

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.row_files import temporary_array
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import ModelInput, read_clips

MEMORY_LIMIT = 3 * 2**29  # bytes of float32 features that a task reads into memory


class StoredClips:
    """Clips of some videos that stay in their store; `read` gives a ClipBatch of some videos.

    Clips of several kinds follow each other, each kind padded to `widths` clips.
    """

    def __init__(
        self,
        store: FeatureStore,
        kinds: tuple[Kind, ...],
        videos: Int[np.ndarray, " N"],
        model: ModelInput | None = None,
        widths: tuple[int, ...] | None = None,
    ) -> None:
        self.store, self.kinds, self.videos, self.model = store, kinds, videos, model
        clip_counts = [store.table(kind).count[videos] for kind in kinds]
        self.widths = widths or tuple(int(counts.max(initial=0)) for counts in clip_counts)
        valid_masks = [
            np.arange(width) < counts[:, None]
            for width, counts in zip(self.widths, clip_counts, strict=True)
        ]
        valid_mask = torch.from_numpy(np.concatenate(valid_masks, axis=1))  # (N, V)
        self.valid = None if widths is None and bool(valid_mask.all()) else valid_mask

    def __len__(self) -> int:
        return len(self.videos)

    @property
    def num_clips(self) -> int:
        """Clips of each video, padding included."""
        return sum(self.widths)

    @property
    def dim(self) -> int:
        """The width of a feature."""
        return self.store.manifest.backbone.dim

    def select(self, videos: Int[Tensor, " B"]) -> StoredClips:
        """The clips of some of the videos, still in the store."""
        widths = None if self.valid is None else self.widths
        return StoredClips(self.store, self.kinds, self.videos[videos.numpy()], self.model, widths)

    def read(self, videos: Int[Tensor, " B"] | slice) -> ClipBatch:
        """The clips of some of the videos."""
        video_indices = self.videos[videos if isinstance(videos, slice) else videos.numpy()]
        batches = [read_clips(self.store, kind, video_indices, self.model) for kind in self.kinds]
        if self.valid is not None:
            batches = [b.pad_to(width) for b, width in zip(batches, self.widths, strict=True)]
        return reduce(ClipBatch.concat_clips, batches)

    def select_clips(self, clips: Int[Tensor, "B W"], videos: Int[Tensor, " B"]) -> ClipBatch:
        """Some valid clips of some videos, by their indices."""
        return self.read(videos).select_clips(clips)


Clips: TypeAlias = ClipBatch | StoredClips


def fits_memory(store: FeatureStore, videos: Int[np.ndarray, " N"]) -> bool:
    """Whether all clips of some videos are few enough to be read into memory."""
    num_clips = sum(int(table.count[videos].sum()) for table in (store.random, store.regular))
    return num_clips * store.manifest.backbone.dim * 4 <= MEMORY_LIMIT


def open_clips(
    store: FeatureStore,
    kind: Kind,
    videos: Int[np.ndarray, " N"],
    model: ModelInput | None,
    *,
    in_memory: bool,
) -> Clips:
    """The clips of some videos of a store, with the boxes of a model."""
    clips = StoredClips(store, (kind,), videos, model)
    return clips.read(slice(None)) if in_memory else clips


def concat_clips(first: Clips, second: Clips) -> Clips:
    """The same videos with the clips of both."""
    if isinstance(first, StoredClips) and isinstance(second, StoredClips):
        is_padded = first.valid is not None or second.valid is not None
        widths = first.widths + second.widths if is_padded else None
        kinds = first.kinds + second.kinds
        return StoredClips(first.store, kinds, first.videos, first.model, widths)
    return first.read(slice(None)).concat_clips(second.read(slice(None)))


def equal_chunks(clips: Clips, chunk_size: int) -> Iterator[tuple[Int[Tensor, " B"], ClipBatch]]:
    """Chunks of videos with the same number of valid clips, without padding, and their indices."""
    video_indices = torch.arange(len(clips))
    if clips.valid is None:
        for low in range(0, len(clips), chunk_size):
            chunk = slice(low, low + chunk_size)
            yield video_indices[chunk], clips.read(chunk)
        return
    clip_counts = clips.valid.sum(dim=1)
    for num_clips in clip_counts.unique().tolist():
        for videos in video_indices[clip_counts == num_clips].split(chunk_size):
            clip_index = clips.valid[videos].nonzero()[:, 1].view(len(videos), num_clips)
            yield videos, clips.select_clips(clip_index, videos)


def allocate_vectors(num_videos: int, width: int) -> Float[Tensor, "N R"]:
    """Room for the vectors of videos; if they are large, half precision in a temporary file."""
    if 4 * num_videos * width <= MEMORY_LIMIT:
        return torch.zeros(num_videos, width)
    return torch.from_numpy(temporary_array((num_videos, width), np.float16))
