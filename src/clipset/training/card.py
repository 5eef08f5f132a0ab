"""What a saved model is and what it was trained on: for machines, and for people as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clipset.config import to_mapping
from clipset.errors import ModelError
from clipset.model.config import MAX_WIDTH, ModelConfig

MODEL_FORMAT = 2
MODEL_TYPE = "clipset"  # `model_type` in config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What a saved model is and what it was trained on."""

    dim: int
    model: ModelConfig
    training: dict[str, Any] = field(default_factory=dict)
    backbone: dict[str, Any] = field(default_factory=dict)
    videos: int = 0
    split: str = ""
    seed: int = 0
    fingerprint: str = ""
    data: str = ""
    splits: tuple[str, ...] = ()
    validation: dict[str, Any] = field(default_factory=dict)
    checksum: str = ""
    format: int = MODEL_FORMAT

    def __post_init__(self) -> None:
        if not 1 <= self.dim <= MAX_WIDTH:
            raise ModelError(f"dim must lie between 1 and {MAX_WIDTH}, got {self.dim}")


def hub_config(card: ModelCard) -> dict[str, Any]:
    """The card as a `config.json` of the Hugging Face convention."""
    return {"model_type": MODEL_TYPE, "architectures": ["ScaleModel"], **to_mapping(card)}


PAGE = """---
library_name: clipset
tags: [video, feature-extraction, set-transformer]
---

# A set transformer over clips, trained with clipset

It takes the features of several clips of a video, as the frozen backbone {backbone} gives them
({dim} numbers for each clip), and gives a token for each clip and one for the set.

## Use

```python
from clipset import ScaleModel
model = ScaleModel.from_pretrained("FOLDER OR NAME OF THIS MODEL")
encoding = model.encode(features, boxes)  # (B, V, {dim}), (B, V, {boxes}): clip_tokens, set_token
```

For a whole store: `clipset represent STORE --model MODEL --out VECTORS`.

## How it was trained

| | |
|---|---|
| data | {data}: {videos} videos without their labels |
| splits of the data | {splits}; learned from: {split} |
| seed | {seed} |
| fingerprint of settings and data | {fingerprint} |
{validation}
All settings:

| setting | value |
|---|---|
{settings}

## Licences

The backbone's weights, which are not part of this folder: {licences}.
The licence of the videos is not known to clipset.
"""


def model_page(card: ModelCard) -> str:
    """The README.md of a model."""
    judged = card.validation
    return PAGE.format(
        backbone=card.backbone.get("name", "of its features"),
        dim=card.dim,
        boxes=card.model.box_dim,
        data=card.data or "not recorded",
        videos=card.videos,
        splits=", ".join(card.splits) or "none",
        split="all videos" if card.split == "all" else card.split,
        seed=card.seed,
        fingerprint=card.fingerprint,
        validation=f"| validation | {_validation(judged)} |\n" if judged else "",
        settings="\n".join(f"| {name} | {value} |" for name, value in _settings(card)),
        licences=_licence(card.backbone),
    )


def _licence(backbone: dict[str, Any]) -> str:
    weights = backbone.get("weights") or {}
    licence, source = weights.get("licence"), weights.get("source")
    return f"{licence or 'not recorded'} ({source or 'source not recorded'})"


def _validation(judged: dict[str, Any]) -> str:
    return f"k-NN {judged['knn']:.1%} on {judged['split']}, at epoch {judged['epoch']}"


def _settings(card: ModelCard) -> list[tuple[str, Any]]:
    training = {name: value for name, value in card.training.items() if name != "model"}
    shape = {f"model.{name}": value for name, value in to_mapping(card.model).items()}
    return [*training.items(), *shape.items()]
