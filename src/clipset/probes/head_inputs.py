"""Inputs of heads: features of all training videos, with cached tokens of random sets of clips."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Generator, Tensor

from clipset.model.encoder import SetEncoder
from clipset.representation import VectorPart, concat_parts
from clipset.sets.batch import ClipBatch

SET_DIVISIONS = 4  # how often a video's clips are divided into sets
STATISTICS_CHUNK = 64  # videos at once: few enough for a processor's cache
ENCODE_CHUNK = 256  # videos encoded at once


@dataclass(frozen=True, slots=True)
class HeadInputs:
    """What heads see of the training videos: random clips to learn from, regular ones to predict.

    Each video has a fixed number of random sets of clips (`sets` holds their indices). With a set
    encoder, its tokens of these sets are cached and follow the clips' features.
    """

    features: Float[Tensor, "N V D"]
    regular: Float[Tensor, "N W R"]
    labels: Int[Tensor, " N"] | Float[Tensor, " N"]
    sets: Int[Tensor, "N Q K"]
    tokens: Float[Tensor, "N Q L H"] | None = None
    valid: Bool[Tensor, "N V"] | None = None
    regular_valid: Bool[Tensor, "N W"] | None = None

    @property
    def dim(self) -> int:
        """Channels of an input."""
        return self.regular.shape[-1]

    def draw(self, videos: Int[Tensor, " B"], generator: Generator) -> Float[Tensor, "B K R"]:
        """A random set of clips of each video, the same with tokens and without."""
        drawn = torch.randint(self.sets.shape[1], (len(videos),), generator=generator)
        clips = self.sets[videos, drawn]  # (B, K)
        features = self.features[videos[:, None], clips]
        if self.tokens is None:
            return features
        tokens = self.tokens[videos, drawn].expand(-1, clips.shape[1], -1)
        return torch.cat([features, tokens], dim=-1)

    def statistics(
        self, videos: Int[Tensor, " B"]
    ) -> tuple[Float[Tensor, " R"], Float[Tensor, " R"]]:
        """Mean and deviation of each channel over all random clips (and sets) of some videos."""
        parts = [_moments(self.features, videos, self.valid)]
        if self.tokens is not None:
            parts.append(_moments(self.tokens.flatten(1, 2), videos, None))
        mean, std = (torch.cat(pair) for pair in zip(*parts, strict=True))
        return mean, torch.where(std > 1e-6, std, torch.ones_like(std))


def _moments(
    values: Float[Tensor, "N V D"], videos: Int[Tensor, " B"], valid: Bool[Tensor, "N V"] | None
) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Mean and deviation of each channel over the valid clips, chunk by chunk."""
    total = torch.zeros(2, values.shape[-1], dtype=torch.float64)
    shift, count = values[0].mean(dim=0), 0
    for chunk in videos.split(STATISTICS_CHUNK):
        rows = values[chunk].flatten(0, 1) if valid is None else values[chunk][valid[chunk]]
        centred = rows - shift
        total[0] += centred.sum(dim=0)
        total[1] += centred.square_().sum(dim=0)
        count += len(rows)
    mean, square = total / count
    return (mean + shift).float(), (square - mean**2).clamp_min(0.0).sqrt().float()


def equal_counts(
    values: Float[Tensor, "N V R"], valid: Bool[Tensor, "N V"] | None, chunk_size: int
) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, "B K R"]]]:
    """Chunks of videos with the same number of valid clips, without padding."""
    every = torch.arange(len(values))
    if valid is None:
        yield from ((part, values[part[0] : part[-1] + 1]) for part in every.split(chunk_size))
        return
    counts = valid.sum(dim=1)
    for count in counts.unique().tolist():
        for part in every[counts == count].split(chunk_size):
            yield part, values[part][valid[part]].view(len(part), count, values.shape[-1])


def divide_into_sets(
    clips: ClipBatch, set_size: int, generator: Generator, num_divisions: int = SET_DIVISIONS
) -> Int[Tensor, "N Q K"]:
    """The clips of each video, divided at random into sets, several times."""
    num_videos, available = clips.features.shape[:2]
    last = torch.zeros(num_videos, available) if clips.valid is None else 2.0 * ~clips.valid
    if clips.valid is not None:
        available = int(clips.valid.sum(dim=1).min())
    size = min(set_size, available)
    divisions = []
    for _ in range(num_divisions):
        order = (torch.rand(last.shape, generator=generator) + last).argsort(dim=1)
        divisions.append(order[:, : available // size * size].view(num_videos, -1, size))
    return torch.cat(divisions, dim=1)


@torch.inference_mode()
def encode_sets(
    encoder: SetEncoder, clips: ClipBatch, sets: Int[Tensor, "N Q K"], token: VectorPart
) -> Float[Tensor, "N Q L H"]:
    """The encoder's tokens of every set: one for the set (L = 1), or one for each clip (L = K)."""
    encoder = encoder.eval()
    chunks = []
    for low in range(0, len(clips), ENCODE_CHUNK):
        some = sets[low : low + ENCODE_CHUNK]  # (B, Q, K)
        videos = torch.arange(low, low + len(some)).repeat_interleave(some.shape[1])
        tokens = concat_parts(encoder, clips.select_clips(some.flatten(0, 1), videos), (token,))
        if token == "set":
            tokens = tokens[:, :1]
        chunks.append(tokens.unflatten(0, some.shape[:2]))
    return torch.cat(chunks)
