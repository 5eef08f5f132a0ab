"""What probes see of clips: vectors of clips or of whole videos, and random sets for training."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor, nn

from clipset.model.encoder import SetEncoder
from clipset.probes.task import LabelledVideos, Labels
from clipset.representation import (
    VectorPart,
    concat_parts,
    course_widths,
    encode_clips,
    video_vectors,
)
from clipset.sets.batch import MIN_STD, ClipBatch, RunningStatistics, mean_over_clips
from clipset.sets.stored_clips import Clips, allocate_vectors, equal_chunks
from clipset.training.batches import ONE_GROUP
from clipset.training.checkpoint import ScaleModel

CHUNK_SIZE = 256  # videos encoded or predicted at once
SMALL_CHUNK = 64  # videos at once that heads see: few enough for a processor's cache
SET_DIVISIONS = 4  # how often a video's clips are divided into sets
TOKEN_VIDEOS = 4096  # videos whose tokens have statistics, if tokens are not cached
SET_TOKEN_WEIGHT = 0.5  # its deviation relative to that of the features, if they are balanced
GROUP_TOKEN_WEIGHT = 1.0  # the same after batches of one group, which the token need not tell apart

Statistics = tuple[Float[Tensor, " R"], Float[Tensor, " R"]]


class ClipInputs(nn.Module):
    """The vectors that a head sees of each clip.

    The backbone's feature as it is, alone (or with the box behind it, if `with_boxes`) or, with an
    encoder, next to the set token (or to its own refined token).
    """

    def __init__(
        self, encoder: SetEncoder | None, *, token: VectorPart = "set", with_boxes: bool = False
    ) -> None:
        super().__init__()
        self.encoder, self.with_boxes = encoder, with_boxes
        self.token: VectorPart = token

    def forward(self, clips: ClipBatch) -> Float[Tensor, "N V R"]:
        if self.encoder is None:
            return self.without_tokens(clips)
        tokens = encode_clips(self.encoder, clips, (self.token,))
        return torch.cat([clips.features, tokens], dim=-1)

    def without_tokens(self, clips: ClipBatch) -> Float[Tensor, "N V R"]:
        """The same without the encoder's tokens, which come last."""
        if self.with_boxes and self.encoder is None:
            return torch.cat([clips.features, clips.boxes], dim=-1)
        return clips.features


class VideoInputs(nn.Module):
    """One vector of each video: the mean over its clips' inputs, or their time course.

    With an encoder, the mean has the set token next to the features; the time course has the
    refined token of each clip.
    """

    def __init__(self, encoder: SetEncoder | None, *, has_course: bool = False) -> None:
        super().__init__()
        self.clip_inputs = ClipInputs(encoder, token="token" if has_course else "set")
        self.has_course = has_course
        self.register_buffer("token_scale", torch.ones(()))  # of the set token

    def forward(self, clips: ClipBatch) -> Float[Tensor, "N R"]:
        clip_vectors = self.clip_inputs(clips)
        if not self.has_course:
            clip_mean = mean_over_clips(clip_vectors, clips.valid)
            clip_mean[:, clips.dim :] *= self.get_buffer("token_scale")
            return clip_mean
        return video_vectors(clip_vectors, clips.valid, self._clip_widths(clips.dim))

    def part_widths(self, feature_dim: int) -> tuple[int, ...]:
        """The widths of the parts of a time course: means and deviations."""
        return course_widths(self._clip_widths(feature_dim))

    def _clip_widths(self, feature_dim: int) -> tuple[int, ...]:
        encoder = self.clip_inputs.encoder
        return (feature_dim,) if encoder is None else (feature_dim, encoder.project.out_features)

    def all_vectors(self, clips: Clips) -> Float[Tensor, "N R"]:
        """The vectors of many videos."""
        all_vectors = allocate_vectors(len(clips), self(clips.read(slice(0, 1))).shape[1])
        for video_index, chunk_clips in equal_chunks(clips, CHUNK_SIZE):
            all_vectors[video_index] = self(chunk_clips).to(all_vectors.dtype)
        return all_vectors

    def balanced_vectors(self, clips: Clips, weight: float) -> Float[Tensor, "N R"]:
        """The vectors of training videos; the set token varies as much as the features x weight.

        Its scale says nothing: as it is, it would often decide alone which videos are similar.
        """
        vectors = self.all_vectors(clips)
        statistics = RunningStatistics()
        for block in vectors.split(CHUNK_SIZE):
            statistics.update(block.float())
        square_sums = statistics.sum_of_squares.split([clips.dim, vectors.shape[1] - clips.dim])
        feature_spread, token_spread = (part.sum().sqrt().float() for part in square_sums)
        if token_spread > MIN_STD:
            token_scale = weight * feature_spread / token_spread
            self.get_buffer("token_scale").copy_(token_scale)
            vectors[:, clips.dim :] *= token_scale.to(vectors.dtype)
        return vectors


def set_token_weight(model: ScaleModel | None) -> float:
    """The deviation of the set token relative to that of the features, in balanced vectors.

    Negatives of the own group teach the token what does not depend on the group; any others may
    teach it the person or the place instead.
    """
    is_grouped = model is not None and model.card.batches == ONE_GROUP
    return GROUP_TOKEN_WEIGHT if is_grouped else SET_TOKEN_WEIGHT


class HeadInputs:
    """What heads see of the training videos: random sets of their clips.

    Each video has a fixed number of sets (`sets` holds the indices of their clips). Behind the
    clips' features are the tokens of the encoder, if there is one: computed once if the clips are
    in memory, and otherwise whenever a set is drawn.
    """

    def __init__(
        self, clips: Clips, labels: Labels, sets: Int[Tensor, "N Q K"], clip_inputs: ClipInputs
    ) -> None:
        self.clips, self.labels, self.sets, self.clip_inputs = clips, labels, sets, clip_inputs
        self.dim: int = clip_inputs(clips.read(slice(0, 1))).shape[-1]
        self.tokens: Float[Tensor, "N Q L H"] | None = None
        if clip_inputs.encoder is not None and isinstance(clips, ClipBatch):
            self.tokens = self.encode_sets(torch.arange(len(clips)))
        self._last: tuple[Tensor, Statistics] | None = None

    def draw(self, video_index: Int[Tensor, " B"], generator: Generator) -> Float[Tensor, "B K R"]:
        """A random set of clips of each video, the same with tokens and without."""
        set_index = torch.randint(self.sets.shape[1], (len(video_index),), generator=generator)
        set_clips = self.clips.select_clips(self.sets[video_index, set_index], video_index)
        if self.tokens is None:
            return self.clip_inputs(set_clips)  # type: ignore[no-any-return]
        set_tokens = self.tokens[video_index, set_index].expand(-1, set_clips.num_clips, -1)
        return torch.cat([set_clips.features, set_tokens], dim=-1)

    def statistics(self, video_index: Int[Tensor, " B"]) -> Statistics:
        """Mean and deviation of each channel over all random clips (and sets) of some videos."""
        if self._last is not None and torch.equal(self._last[0], video_index):
            return self._last[1]
        clip_statistics = RunningStatistics()
        for index_chunk in video_index.split(SMALL_CHUNK):
            clips = self.clips.read(index_chunk)
            vectors = self.clip_inputs.without_tokens(clips)
            valid_vectors = vectors.flatten(0, 1) if clips.valid is None else vectors[clips.valid]
            clip_statistics.update(valid_vectors)
        parts = [clip_statistics]
        if self.clip_inputs.encoder is not None:
            parts.append(self._token_statistics(video_index))
        mean, std = (torch.cat([getattr(p, name) for p in parts]) for name in ("mean", "std"))
        self._last = video_index, (mean, std)
        return mean, std

    def _token_statistics(self, video_index: Int[Tensor, " B"]) -> RunningStatistics:
        if self.tokens is None:
            video_index = video_index[:: -(-len(video_index) // TOKEN_VIDEOS)]
        token_statistics = RunningStatistics()
        for chunk in video_index.split(SMALL_CHUNK):
            set_tokens = self.encode_sets(chunk) if self.tokens is None else self.tokens[chunk]
            token_statistics.update(set_tokens.flatten(0, 2))
        return token_statistics

    @torch.inference_mode()
    def encode_sets(self, video_index: Int[Tensor, " B"]) -> Float[Tensor, "B Q L H"]:
        """The encoder's tokens of every set: one for the set (L = 1), or one for each clip."""
        encoder, token = self.clip_inputs.encoder, self.clip_inputs.token
        assert encoder is not None  # only called if there is one
        token_chunks = []
        for index_chunk in video_index.split(CHUNK_SIZE):
            clip_sets, video_rows = self.sets[index_chunk], torch.arange(len(index_chunk))
            set_rows = video_rows.repeat_interleave(clip_sets.shape[1])
            set_clips = self.clips.read(index_chunk).select_clips(clip_sets.flatten(0, 1), set_rows)
            set_tokens = concat_parts(encoder.eval(), set_clips, (token,))
            set_tokens = set_tokens[:, :1] if token == "set" else set_tokens
            token_chunks.append(set_tokens.view(*clip_sets.shape[:2], *set_tokens.shape[1:]))
        return torch.cat(token_chunks)


def divide_into_sets(
    clips: Clips, set_size: int, generator: Generator, num_divisions: int = SET_DIVISIONS
) -> Int[Tensor, "N Q K"]:
    """The clips of each video, divided at random into sets, several times."""
    num_videos, num_available = len(clips), clips.num_clips
    last = torch.zeros(num_videos, num_available) if clips.valid is None else 2.0 * ~clips.valid
    if clips.valid is not None:
        num_available = int(clips.valid.sum(dim=1).min())
    set_size = min(set_size, num_available)
    divisions = []
    for _ in range(num_divisions):
        clip_order = (torch.rand(last.shape, generator=generator) + last).argsort(dim=1)
        used_clips = clip_order[:, : num_available // set_size * set_size]
        divisions.append(used_clips.view(num_videos, -1, set_size))
    return torch.cat(divisions, dim=1)


class ValidationInputs:
    """The inputs of the validation videos, chunk by chunk; computed once if they are in memory."""

    def __init__(self, videos: LabelledVideos, clip_inputs: ClipInputs) -> None:
        self.clips, self.labels, self.clip_inputs = videos.regular, videos.labels, clip_inputs
        in_memory = isinstance(self.clips, ClipBatch)
        self.chunks = list(self._read()) if in_memory else None

    def __iter__(self) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, "B W R"]]]:
        return self._read() if self.chunks is None else iter(self.chunks)

    def _read(self) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, "B W R"]]]:
        for video_index, clips in equal_chunks(self.clips, SMALL_CHUNK):
            yield video_index, self.clip_inputs(clips)
