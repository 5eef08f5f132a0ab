"""In which numbers a step is computed: mixed where the hardware gains from it, else float32."""

from __future__ import annotations

import torch

from clipset.errors import TrainingError
from clipset.training.config import PretrainConfig

MIXED = {"bfloat16": torch.bfloat16, "float16": torch.float16}


def choose_precision(config: PretrainConfig, device: torch.device) -> torch.dtype:
    """bfloat16 on CUDA cards that compute in it, float16 on older ones with tensor cores."""
    if config.precision in MIXED and device.type != "cuda":
        raise TrainingError(
            f"{config.precision} gains nothing on the device {device.type!r}; "
            f"use precision 'auto' or 'float32'"
        )
    if config.precision != "auto":
        return MIXED.get(config.precision, torch.float32)
    if device.type != "cuda":
        return torch.float32
    major, _minor = torch.cuda.get_device_capability(device)
    if major >= 8:
        return torch.bfloat16
    return torch.float16 if major == 7 else torch.float32
