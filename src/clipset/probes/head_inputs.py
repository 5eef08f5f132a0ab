"""Inputs of heads: random sets of clips of the training videos, with the tokens of an encoder."""

from __future__ import annotations

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from clipset.model.encoder import SetEncoder
from clipset.probes.base import ClipInputs
from clipset.representation import VectorPart, concat_parts
from clipset.sets.batch import ClipBatch, RunningStatistics
from clipset.sets.stored_clips import Clips

SET_DIVISIONS = 4  # how often a video's clips are divided into sets
STATISTICS_CHUNK = 64  # videos at once: few enough for a processor's cache
ENCODE_CHUNK = 256  # videos encoded at once
TOKEN_VIDEOS = 4096  # videos whose tokens have statistics, if tokens are not cached

Statistics = tuple[Float[Tensor, " R"], Float[Tensor, " R"]]


class HeadInputs:
    """What heads see of the training videos: random sets of their clips.

    Each video has a fixed number of sets (`sets` holds the indices of their clips). Behind the
    clips' features are the tokens of the encoder, if there is one: computed once if the clips are
    in memory, and otherwise whenever a set is drawn.
    """

    def __init__(
        self,
        clips: Clips,
        labels: Int[Tensor, " N"] | Float[Tensor, " N"],
        sets: Int[Tensor, "N Q K"],
        clip_inputs: ClipInputs,
    ) -> None:
        self.clips, self.labels, self.sets, self.clip_inputs = clips, labels, sets, clip_inputs
        self.dim: int = clip_inputs(clips.read(slice(0, 1))).shape[-1]
        self.tokens: Float[Tensor, "N Q L H"] | None = None
        if clip_inputs.encoder is not None and isinstance(clips, ClipBatch):
            self.tokens = self._encode_sets(torch.arange(len(clips)))
        self._last: tuple[Tensor, Statistics] | None = None

    def draw(self, videos: Int[Tensor, " B"], generator: Generator) -> Float[Tensor, "B K R"]:
        """A random set of clips of each video, the same with tokens and without."""
        drawn = torch.randint(self.sets.shape[1], (len(videos),), generator=generator)
        clips = self.clips.select_clips(self.sets[videos, drawn], videos)
        if self.tokens is None:
            return self.clip_inputs(clips)  # type: ignore[no-any-return]
        tokens = self.tokens[videos, drawn].expand(-1, clips.num_clips, -1)
        return torch.cat([clips.features, tokens], dim=-1)

    def statistics(self, videos: Int[Tensor, " B"]) -> Statistics:
        """Mean and deviation of each channel over all random clips (and sets) of some videos."""
        if self._last is not None and torch.equal(self._last[0], videos):
            return self._last[1]
        features = RunningStatistics()
        for chunk in videos.split(STATISTICS_CHUNK):
            clips = self.clips.read(chunk)
            inputs = self.clip_inputs.without_tokens(clips)
            features.update(inputs.flatten(0, 1) if clips.valid is None else inputs[clips.valid])
        parts = [features]
        if self.clip_inputs.encoder is not None:
            parts.append(self._token_statistics(videos))
        mean, std = (torch.cat([getattr(p, name) for p in parts]) for name in ("mean", "std"))
        self._last = videos, (mean, std)
        return mean, std

    def _token_statistics(self, videos: Int[Tensor, " B"]) -> RunningStatistics:
        if self.tokens is None:
            videos = videos[:: -(-len(videos) // TOKEN_VIDEOS)]
        statistics = RunningStatistics()
        for chunk in videos.split(STATISTICS_CHUNK):
            tokens = self._encode_sets(chunk) if self.tokens is None else self.tokens[chunk]
            statistics.update(tokens.flatten(0, 2))
        return statistics

    def _encode_sets(self, videos: Int[Tensor, " B"]) -> Float[Tensor, "B Q L H"]:
        assert self.clip_inputs.encoder is not None  # only called if there is one
        chunks = [
            encode_sets(
                self.clip_inputs.encoder,
                self.clips.read(chunk),
                self.sets[chunk],
                self.clip_inputs.token,
            )
            for chunk in videos.split(ENCODE_CHUNK)
        ]
        return torch.cat(chunks)


def divide_into_sets(
    clips: Clips, set_size: int, generator: Generator, num_divisions: int = SET_DIVISIONS
) -> Int[Tensor, "N Q K"]:
    """The clips of each video, divided at random into sets, several times."""
    num_videos, available = len(clips), clips.num_clips
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
    videos = torch.arange(len(sets)).repeat_interleave(sets.shape[1])
    members = clips.select_clips(sets.flatten(0, 1), videos)
    tokens = concat_parts(encoder.eval(), members, (token,))
    if token == "set":
        tokens = tokens[:, :1]
    return tokens.view(*sets.shape[:2], *tokens.shape[1:])
