"""The card of a saved model: its architecture, its training and its data; as JSON and as a page."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from clipset.config import flatten, to_mapping
from clipset.errors import ModelError
from clipset.model.config import MAX_WIDTH, ModelConfig

MODEL_FORMAT = 3
MODEL_TYPE = "clipset"  # `model_type` in config.json


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """The architecture, the training and the data of a saved model."""

    dim: int
    model: ModelConfig
    training: dict[str, Any] = field(default_factory=dict)
    backbone: dict[str, Any] = field(default_factory=dict)
    videos: int = 0
    held_out: int = 0
    steps: int = 0
    batches: str = ""
    batches_reason: str = ""
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

    @property
    def batch_note(self) -> str:
        """Which videos formed a batch, and why."""
        return f"{self.batches}: {self.batches_reason}" if self.batches else "not recorded"


PAGE = """---
library_name: clipset
tags: [video, feature-extraction, set-transformer]
---

# A set transformer over clips, trained with clipset

Input: features of several clips of a video by the backbone {backbone} ({dim} numbers for
each clip) and their boxes. Output: a token for each clip and a token for the set.

## Use

```python
from clipset import ScaleModel
model = ScaleModel.from_pretrained("FOLDER OR NAME OF THIS MODEL")
encoding = model.encode(features, boxes)  # (B, V, {dim}), (B, V, {boxes}): clip_tokens, set_token
```

For a whole store: `clipset embed STORE --model MODEL --out VECTORS`.

## Training

| | |
|---|---|
| data | {data}: {videos} videos without their labels |
| steps of the optimiser | {steps} |
| videos of a batch | {batches} |
| splits of the data | {splits}; trained on: {split} |
| seed | {seed} |
| fingerprint of settings and data | {fingerprint} |
{validation}
All settings:

| setting | value |
|---|---|
{settings}

## Licences

Weights of the backbone, {place}: {licence}.
Clipset does not know the licence of the videos.
"""


def model_page(card: ModelCard) -> str:
    """The README.md of a model."""
    weights = card.backbone.get("weights") or {}
    licence, source = weights.get("licence"), weights.get("source")
    validation = "| validation | k-NN {knn:.1%} on {split}, at epoch {epoch} |\n"
    settings = flatten({**card.training, "model": to_mapping(card.model)})
    return PAGE.format(
        backbone=card.backbone.get("name", "of these features"),
        dim=card.dim,
        boxes=card.model.box_dim,
        data=card.data or "not recorded",
        videos=card.videos,
        steps=card.steps,
        batches=card.batch_note,
        splits=", ".join(card.splits) or "none",
        split="all videos" if card.split == "all" else card.split,
        seed=card.seed,
        fingerprint=card.fingerprint,
        validation=validation.format_map(card.validation) if card.validation else "",
        settings="\n".join(f"| {name} | {value} |" for name, value in settings.items()),
        place="trained with this model, vit.safetensors in this folder, from weights"
        if "end_to_end" in card.backbone
        else "which are not part of this folder",
        licence=f"{licence or 'not recorded'} ({source or 'source not recorded'})",
    )
