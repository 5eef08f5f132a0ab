"""The three named ways to train: values, and how they give way to what is set by hand."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any, Final

from clipset.model.config import PRESETS as MODELS

PUBLISHED: Final[Mapping[str, Any]] = {
    "min_steps": 1,
    "batch": 512,
    "clips_per_set": 8,
    "mask_ratio": 0.25,
    "learning_rate": 3e-4,
    "warmup": 0.05,
    "weight_decay": 1e-4,
    "clip_gradient": 0.0,
    "standardise": False,
}
"""What the paper and the published code share."""

TRAININGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "recommended": {},
    "paper": {**PUBLISHED, "epochs": 500},
    "official": {**PUBLISHED, "epochs": 200, "mask_rule": "coin"},
}
"""How each named training differs from the defaults, which are the recommended one."""


def apply_preset(config: Any, name: str) -> None:
    """Give a new PretrainConfig the values of a preset wherever it still has its defaults."""
    _fill(config, TRAININGS[name])
    if MODELS[name]:
        values = {field.name: getattr(config.model, field.name) for field in fields(config.model)}
        model = type(config.model)(**{**values, **_left(config.model, MODELS[name])})
        object.__setattr__(config, "model", model)


def _fill(config: Any, values: Mapping[str, Any]) -> None:
    for name, value in _left(config, values).items():
        object.__setattr__(config, name, value)


def _left(config: Any, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values of fields that still have their defaults."""
    usual = {field.name: field.default for field in fields(config) if field.default is not MISSING}
    return {name: v for name, v in values.items() if getattr(config, name) == usual[name]}
