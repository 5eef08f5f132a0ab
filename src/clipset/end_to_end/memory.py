"""How much memory a step needs, known before the first one: too large a batch is refused.

The model of activations counts the tensors that the backward pass keeps, in single precision;
mixed precision needs less.
"""

from __future__ import annotations

import torch

from clipset.backbones.registry import BackboneSpec
from clipset.end_to_end.model import EndToEndModel, clips_at_once, count_kept_tokens, count_tokens
from clipset.errors import TrainingError
from clipset.networks.video_transformers import VideoMAE
from clipset.training.data import available_memory

FLOAT_BYTES = 4
OPTIMIZER_COPIES = 4  # of each trained weight: itself, its gradient, two moments
BATCHES_IN_MEMORY = 3  # the one of this step, the next one, and videos that are ready too early


def clip_bytes(network: VideoMAE, spec: BackboneSpec, num_tokens: int) -> int:
    """What the backward pass keeps of one clip.

    Its pixels; of every token in every block the inputs of both norms and of all linear layers,
    queries, keys, values and the output of the attention; and the last norm.
    """
    config = network.config
    pixels = spec.frames * 3 * spec.size**2
    block = 8 * config.embed_dim + 2 * config.mlp_dim + config.num_heads + 4
    last_norm = 2 * config.embed_dim
    return FLOAT_BYTES * (pixels + num_tokens * (config.depth * block + last_norm))


def check_memory(
    model: EndToEndModel,
    spec: BackboneSpec,
    *,
    num_videos: int,
    num_clips: int,
    drop: float,
    device: torch.device,
) -> None:
    """Refuse batches (of one rank) of so many videos with so many clips, if they do not fit."""
    vit = model.vit
    num_visible = count_kept_tokens(count_tokens(vit, spec.frames, spec.size), drop)
    of_clip = clip_bytes(vit, spec, num_visible)
    trained = sum(p.numel() for p in model.parameters() if p.requires_grad)
    weights = sum(p.numel() for p in model.parameters()) + (OPTIMIZER_COPIES - 1) * trained
    fixed = FLOAT_BYTES * weights + clips_at_once(num_visible) * of_clip
    keeps_all = model.is_trained and not model.checkpointing
    activations = num_clips * of_clip if keeps_all else 0
    pixels = num_clips * spec.frames * 3 * spec.size**2
    if device.type == "cuda":
        free, num_batches = torch.cuda.mem_get_info(device)[0], 1
    else:
        free, num_batches = available_memory(), BATCHES_IN_MEMORY
    of_video = num_batches * pixels + activations
    if fixed + num_videos * of_video > free:
        fitting = max(0, free - fixed) // of_video
        raise TrainingError(
            f"batches of {num_videos} videos ({num_videos * num_clips} clips of {spec.frames} × "
            f"{spec.size} × {spec.size} pixels, {num_visible} tokens each) need about "
            f"{_gigabytes(fixed + num_videos * of_video)}, {_gigabytes(free)} are free; "
            f"batch_size {fitting} would fit, or drop more tokens or use smaller clips"
        )


def _gigabytes(size: int) -> str:
    return f"{size / 1e9:.1f} GB"
