"""How much memory a training step needs, known before the first one: too large a batch is refused.

The model of activations counts the tensors that the backward pass keeps, in single precision;
mixed precision needs less.
"""

from __future__ import annotations

import torch

from clipset.errors import TrainingError
from clipset.networks.video_transformers import VideoMAEConfig
from clipset.ssl.config import BackboneTraining
from clipset.ssl.methods import DECODER_DEPTH
from clipset.training.data import available_memory

FLOAT_BYTES = 4
WEIGHT_COPIES = 5  # of each weight: itself, its gradient, two moments, its average over the steps
BLOCK_VALUES = 17


def step_bytes(method: str, network: VideoMAEConfig, *, drop: float, batch: int) -> int:
    """The memory of a step: weights, moments, and 17 values of each token and channel of a block.

    These are the inputs of two norms, of the projections to queries, keys and values (and these
    three) and of the MLP, attention's output twice, and the MLP's hidden layer (four times as wide)
    before and after its activation.
    """
    num_patches = (network.size // network.patch_size) ** 2
    num_tokens = num_patches * (network.frames // network.tubelet_size)
    num_weights = 12 * network.depth * network.embed_dim**2
    values = BLOCK_VALUES * network.depth * network.embed_dim * num_tokens
    if method != "moco":
        values = round(values * (1 - drop))
    if method == "videomae":
        values += BLOCK_VALUES * DECODER_DEPTH * network.embed_dim // 2 * num_tokens
    else:
        values *= 2  # views
    return FLOAT_BYTES * (WEIGHT_COPIES * num_weights + batch * values)


def check_memory(config: BackboneTraining, num_videos: int, device: torch.device) -> None:
    """Refuse batches that do not fit into the memory of the device."""
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else available_memory()
    batch = min(config.batch_size, num_videos)
    without, needed = (
        step_bytes(config.method, config.network, drop=config.drop, batch=size)
        for size in (0, batch)
    )
    if needed > free:
        fitting = max(0, free - without) * batch // (needed - without)
        remedy = f"batch_size {fitting} would fit, or use" if fitting > 1 else "use"
        raise TrainingError(
            f"batches of {batch} videos need about {needed / 1e9:.1f} GB, {free / 1e9:.1f} GB are "
            f"free; {remedy} a smaller vit, fewer frames or a smaller size"
        )
