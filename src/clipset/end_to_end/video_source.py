"""Batches of clips as pixels, decoded anew in every epoch, for a backbone that is trained.

Clips and dropped tokens of a video depend on the seed, the epoch and the video alone. The clips of
the first epoch are those that an extraction would store.
"""

from __future__ import annotations

import copy
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

import msgspec
import numpy as np
import torch
from jaxtyping import Int
from torch import Tensor

from clipset.clips.decode import DecodedClips
from clipset.clips.sampling import video_generator
from clipset.config import read_json
from clipset.data.catalog import Video
from clipset.end_to_end.model import count_kept_tokens
from clipset.errors import ConfigError, OutputError, TrainingError, VideoError
from clipset.features.decode_pool import ClipDecoder, DecodeResult
from clipset.files import write_json
from clipset.model.config import ModelConfig
from clipset.progress import log
from clipset.sets.reading import model_boxes
from clipset.sets.sampling import PixelPair, SetIndices
from clipset.training.data import BatchPlan, BatchSource, prefetch
from clipset.training.distributed import ProcessGroup

RECORD_FILE = "unreadable.json"


class Unreadable:
    """The videos that could not be read, with the reasons; kept in a file beside the model.

    They are left out of their batches, which are drawn as if they were there, so that a failure
    changes no other video. They are not tried again in this run.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / RECORD_FILE
        self.reasons: dict[str, str] = {}
        self._new: dict[str, str] = {}

    def read(self) -> None:
        """Take over what an interrupted run has recorded."""
        with suppress(ConfigError, msgspec.ValidationError):  # there is none, or it is damaged
            self.reasons = msgspec.convert(read_json(self.path), dict[str, str])

    def add(self, video_id: str, reason: str) -> None:
        """Leave a video out from now on."""
        self.reasons[video_id] = self._new[video_id] = reason

    def exchange(self, processes: ProcessGroup) -> None:
        """Tell all ranks what failed on one of them; the first one says and records it."""
        new: dict[str, str] = {}
        for reasons in processes.gather_values(self._new):
            new |= reasons
        self.reasons |= new
        self._new = {}
        if processes.is_main and new:
            for video_id, reason in sorted(new.items()):
                log(f"left out {video_id}: {reason}")
            try:
                write_json(self.path, dict(sorted(self.reasons.items())))
            except OutputError as error:
                log(f"{error.problem}; training continues without {self.path.name}")


class VideoSource(BatchSource):
    """Videos whose clips are decoded when they are needed, two sets of each in every epoch."""

    def __init__(
        self,
        videos: Sequence[Video],
        decoder: ClipDecoder,
        model: ModelConfig,
        unreadable: Unreadable,
        *,
        dim: int,
        num_tokens: int,
        drop: float,
        seed: int,
        groups: Int[Tensor, " N"] | None = None,
    ) -> None:
        self.videos, self.decoder, self.model, self.unreadable = videos, decoder, model, unreadable
        self.dim, self.groups, self.seed = dim, groups, seed
        self.num_tokens, self.num_visible = num_tokens, count_kept_tokens(num_tokens, drop)
        self.max_clips = decoder.request.sampling.num_clips

    def __len__(self) -> int:
        return len(self.videos)

    def sample(self, num_videos: int) -> VideoSource:
        """A source of some of the videos, drawn at random, or of all of them."""
        if num_videos >= len(self.videos):
            return self
        order = np.random.default_rng(self.seed).permutation(len(self.videos))
        source = copy.copy(self)
        source.videos = [self.videos[index] for index in sorted(order[:num_videos].tolist())]
        source.groups = None
        return source

    def read_sets(self, plan: Iterator[BatchPlan], epoch: int) -> Iterator[tuple[int, PixelPair]]:
        """The sets of an epoch; videos that cannot be read are missing in them, not in the size."""
        return prefetch(self._decode_sets(list(plan), epoch), ahead=1)

    def _decode_sets(
        self, plan: Sequence[BatchPlan], epoch: int
    ) -> Iterator[tuple[int, PixelPair]]:
        known = set(self.unreadable.reasons)
        planned = [self.videos[video] for _, videos, _ in plan for video in videos.tolist()]
        readable = [video for video in planned if video.id not in known]
        results = _in_order(self.decoder.decode(readable, epoch))
        for size, videos, sets in plan:
            pair, rows = self._empty_pair(sets), []
            for row, index in enumerate(videos.tolist()):
                video = self.videos[index]
                if video.id in known:
                    continue
                clips = next(results)
                if isinstance(clips, VideoError):
                    self.unreadable.add(video.id, str(clips))
                else:
                    self._fill(pair, row, clips, sets.clip_index[:, row], video, epoch)
                    rows.append(row)
            yield size, pair if len(rows) == len(pair) else pair.select(torch.tensor(rows).long())
            del pair  # not held while the next one is decoded

    def _empty_pair(self, sets: SetIndices) -> PixelPair:
        request, shape = self.decoder.request, sets.masked.shape
        clip_shape = (request.frames, 3, request.size, request.size)
        visible = None
        if self.num_visible < self.num_tokens:
            visible = torch.empty((*shape, self.num_visible), dtype=torch.int64)
        try:
            return PixelPair(
                torch.empty((*shape, *clip_shape), dtype=torch.uint8),
                torch.empty((*shape, self.model.box_dim)),
                sets.masked,
                visible,
            )
        except RuntimeError:  # of torch's allocator
            raise TrainingError(
                f"the {shape[0] * shape[1] * shape[2]} clips of a batch do not fit in memory; "
                f"use a smaller batch_size"
            ) from None

    def _fill(
        self,
        pair: PixelPair,
        row: int,
        chunks: Sequence[DecodedClips],
        clip_index: Int[Tensor, "2 V"],
        video: Video,
        epoch: int,
    ) -> None:
        """Write the two sets of a video into a batch."""
        boxes = np.empty((1, self.max_clips, 7), np.float32)
        pixels = pair.pixels[:, row]  # (2, V, T, 3, S, S)
        for clips in chunks:
            indices = list(clips.facts.clip_indices or range(self.max_clips))
            boxes[0, indices] = clips.boxes
            for clip, own_pixels in zip(indices, clips.pixels, strict=True):
                pixels[clip_index == clip] = own_pixels
        durations = np.array([chunks[0].facts.duration])
        model_coordinates = model_boxes(boxes, durations, self.model.box_coordinates)
        pair.boxes[:, row] = torch.from_numpy(model_coordinates)[0, clip_index]
        if pair.visible is not None:
            generator = video_generator(self.seed, video.id, epoch, self.num_tokens)
            order = generator.random((self.max_clips, self.num_tokens)).argsort(axis=1)
            visible = np.sort(order[:, : self.num_visible], axis=1)  # (W, K)
            pair.visible[:, row] = torch.from_numpy(visible)[clip_index]


def _in_order(results: Iterator[DecodeResult]) -> Iterator[list[DecodedClips] | VideoError]:
    """All chunks of each video in turn, or why it cannot be read; those that come early wait."""
    chunks: defaultdict[int, list[DecodedClips]] = defaultdict(list)
    finished: dict[int, list[DecodedClips] | VideoError] = {}
    num_given = 0
    for index, clips in results:
        if isinstance(clips, VideoError):
            chunks.pop(index, None)
            finished[index] = clips
        else:
            chunks[index].append(clips)
            if clips.facts.is_last_chunk:
                finished[index] = chunks.pop(index)
        del clips  # not held while the next one is decoded
        while num_given in finished:
            yield finished.pop(num_given)
            num_given += 1
