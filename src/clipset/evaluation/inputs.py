"""What heads on frozen features see, computed once: clips alone, or with the encoder's tokens."""

from __future__ import annotations

from dataclasses import replace

import torch
from jaxtyping import Float, Int
from torch import Generator, Tensor

from clipset.evaluation.config import ProbeTraining
from clipset.evaluation.heads import HeadInputs
from clipset.evaluation.task import LabelledVideos
from clipset.model.encoder import SetEncoder
from clipset.representation import CHUNK, VectorPart, concat_parts, encode_clips
from clipset.sets.batch import ClipBatch

SET_DRAWS = 4  # how often a video's clips are divided into sets


def clip_inputs(train: LabelledVideos) -> HeadInputs:
    """The backbone's features."""
    return with_present(
        HeadInputs(train.random.features, train.regular.features, train.wanted), train
    )


def placed_inputs(train: LabelledVideos) -> HeadInputs:
    """The backbone's features with the box of each clip behind them."""
    inputs = HeadInputs(placed(train.random), placed(train.regular), train.wanted)
    return with_present(inputs, train)


def with_present(inputs: HeadInputs, train: LabelledVideos) -> HeadInputs:
    """The same inputs with what is known of clips that are not there."""
    return replace(inputs, valid=train.random.valid, regular_valid=train.regular.valid)


def placed(clips: ClipBatch) -> Float[Tensor, "N V R"]:
    """Features and boxes side by side."""
    return torch.cat([clips.features, clips.boxes], dim=-1)


def set_inputs(
    train: LabelledVideos, encoder: SetEncoder, config: ProbeTraining, part: VectorPart, seed: int
) -> HeadInputs:
    """The backbone's features next to what the frozen encoder says of the set that they are in.

    Each video's random clips are divided at random into sets of `config.num_clips`, `SET_DRAWS`
    times; `part` is `set` (one token for the set) or `token` (one for each clip).
    """
    clips = train.random
    sets = divide_into_sets(clips, config, Generator().manual_seed(seed))
    inputs = HeadInputs(
        features=encoder.standardise(clips.features),
        regular=encode_clips(encoder, train.regular, ("clip", part)),
        wanted=train.wanted,
        sets=sets,
        tokens=encode_sets(encoder, clips, sets, part),
    )
    return with_present(inputs, train)


def divide_into_sets(
    clips: ClipBatch, config: ProbeTraining, generator: Generator
) -> Int[Tensor, "N Q K"]:
    """Which clips form each of the sets of each video."""
    videos, available = clips.features.shape[:2]
    valid = clips.valid
    absent = torch.zeros(videos, available) if valid is None else 2.0 * ~valid
    if valid is not None:
        available = int(valid.sum(dim=1).min())
    size = min(config.num_clips, available)
    drawn = []
    for _ in range(SET_DRAWS):
        order = (torch.rand(absent.shape, generator=generator) + absent).argsort(dim=1)
        drawn.append(order[:, : available // size * size].view(videos, -1, size))
    return torch.cat(drawn, dim=1)


@torch.inference_mode()
def encode_sets(
    encoder: SetEncoder, clips: ClipBatch, sets: Int[Tensor, "N Q K"], part: VectorPart
) -> Float[Tensor, "N Q L H"]:
    """The encoder's tokens for every set."""
    encoder = encoder.eval()
    found = []
    for low in range(0, len(clips), CHUNK):
        chosen = sets[low : low + CHUNK]  # (B, Q, K)
        videos = torch.arange(low, low + len(chosen)).repeat_interleave(chosen.shape[1])
        tokens = concat_parts(encoder, clips.pick(chosen.flatten(0, 1), videos), (part,))
        if part == "set":
            tokens = tokens[:, :1]
        found.append(tokens.unflatten(0, chosen.shape[:2]))
    return torch.cat(found)
