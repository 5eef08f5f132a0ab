"""Batches of clips as pixels, decoded anew in every epoch, for a backbone that is trained.

Clips and dropped tokens of a video depend on the seed, the epoch and the video alone. The clips of
the first epoch are those that an extraction would store.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
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
from clipset.training.config import PretrainConfig
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
        try:
            reasons = read_json(self.path) if self.path.is_file() else {}
        except ConfigError:
            reasons = {}
        if isinstance(reasons, dict):
            self.reasons = {str(id): str(reason) for id, reason in reasons.items()}

    def add(self, video_id: str, reason: str) -> None:
        """Leave a video out from now on."""
        self.reasons[video_id] = self._new[video_id] = reason

    def exchange(self, processes: ProcessGroup) -> None:
        """Tell all ranks what failed on one of them; the first one says and records it."""
        lines = [msgspec.json.encode(item).decode() for item in self._new.items()]
        new = dict(msgspec.json.decode(line) for line in processes.gather_lines(lines))
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

    def batches(
        self,
        config: PretrainConfig,
        generator: torch.Generator,
        processes: ProcessGroup,
        *,
        epoch: int = 0,
    ) -> Iterator[tuple[int, PixelPair]]:
        """One epoch: the size of each batch, and the sets of this rank's shard of it.

        Videos that cannot be read are missing in the sets, not in the size.
        """
        plan = list(self.draw_sets(config, generator, processes))
        return prefetch(self._decode_sets(plan, epoch), ahead=1)

    def _decode_sets(
        self, plan: Sequence[BatchPlan], epoch: int
    ) -> Iterator[tuple[int, PixelPair]]:
        known = self.unreadable.reasons
        order = [int(video) for _, videos, _ in plan for video in videos]
        order = [video for video in order if self.videos[video].id not in known]
        results = self.decoder.decode([self.videos[video] for video in order], epoch)
        arrived = _Arrivals(results, order)
        for size, videos, sets in plan:
            pair, rows = self._empty_pair(sets), []
            for row, video in enumerate(videos.tolist()):
                if arrived.is_expected(video):
                    clips = arrived.take(video)
                    if isinstance(clips, VideoError):
                        self.unreadable.add(self.videos[video].id, str(clips))
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
        video: int,
        epoch: int,
    ) -> None:
        """Write the two sets of a video into a batch."""
        boxes = np.empty((1, self.max_clips, 7), np.float32)
        position = torch.empty(self.max_clips, dtype=torch.int64)  # of each clip in the two sets
        position[clip_index.flatten()] = torch.arange(clip_index.numel())
        pixels = pair.pixels[:, row]
        for clips in chunks:
            indices = clips.facts.clip_indices or range(self.max_clips)
            boxes[0, list(indices)] = clips.boxes
            for clip, own_pixels in zip(indices, clips.pixels, strict=True):
                half, set_index = divmod(int(position[clip]), clip_index.shape[1])
                pixels[half, set_index] = own_pixels
        durations = np.array([chunks[0].facts.duration])
        model_coordinates = model_boxes(boxes, durations, self.model.box_coordinates)
        pair.boxes[:, row] = torch.from_numpy(model_coordinates)[0, clip_index]
        if pair.visible is not None:
            pair.visible[:, row] = self._draw_visible(video, epoch)[clip_index]

    def _draw_visible(self, video: int, epoch: int) -> Int[Tensor, "V K"]:
        """The tokens of each clip of a video that are not dropped, in ascending order."""
        generator = video_generator(self.seed, self.videos[video].id, epoch, self.num_tokens)
        random = generator.random((self.max_clips, self.num_tokens))
        return torch.from_numpy(np.sort(random.argsort(axis=1)[:, : self.num_visible], axis=1))


class _Arrivals:
    """Results in the order in which they are needed; those that come too early wait."""

    def __init__(self, results: Iterator[DecodeResult], videos: Sequence[int]) -> None:
        self.results, self.videos, self.expected = results, videos, set(videos)
        self.finished: dict[int, list[DecodedClips] | VideoError] = {}
        self.unfinished: dict[int, list[DecodedClips]] = {}

    def is_expected(self, video: int) -> bool:
        """Whether a video is decoded at all."""
        return video in self.expected

    def take(self, video: int) -> list[DecodedClips] | VideoError:
        """All chunks of a video, or why it cannot be read."""
        while video not in self.finished:
            index, clips = next(self.results)
            if isinstance(clips, VideoError):
                self.unfinished.pop(self.videos[index], None)
                self.finished[self.videos[index]] = clips
                continue
            chunks = self.unfinished.setdefault(self.videos[index], [])
            chunks.append(clips)
            if clips.facts.is_last_chunk:
                self.finished[self.videos[index]] = self.unfinished.pop(self.videos[index])
            del clips, chunks
        return self.finished.pop(video)
