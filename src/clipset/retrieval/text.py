"""TextTower: texts as directions of a backbone's features, by the text part of the same model.

The features of a store are in the space that the model shares with texts, or (CLIP) one linear
projection away from it.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import nn

from clipset.backbones.huggingface import (
    ModelFamily,
    import_transformers,
    load_hub_model,
    quiet,
    read_hub_config,
)
from clipset.backbones.huggingface_files import find_folder, find_weights
from clipset.backbones.registry import check_recorded, checkpoint_files
from clipset.checksums import sha256_of_files
from clipset.errors import SearchError, error_line
from clipset.features.extract import name_to_load
from clipset.features.store import Manifest
from clipset.retrieval.rows import TextDirection


@dataclass(frozen=True, slots=True, kw_only=True)
class TextFamily:
    """How the models of one type encode a text.

    `head` comes after the text part; `projection` takes a stored feature to the shared space.
    """

    model_class: str
    head: str = ""
    projection: str = ""
    is_padded: bool = False  # to the full length, as in training
    is_lower: bool = False  # trained on lower case


TEXT_FAMILIES = {
    "clip": TextFamily(
        model_class="CLIPModel", head="text_projection", projection="visual_projection"
    ),
    "metaclip_2": TextFamily(
        model_class="MetaClip2Model", head="text_projection", projection="visual_projection"
    ),
    "siglip": TextFamily(model_class="SiglipModel", is_padded=True, is_lower=True),
    "xclip": TextFamily(model_class="XCLIPModel", head="text_projection"),
    "videoprism": TextFamily(model_class="VideoPrismClipModel", is_padded=True, is_lower=True),
}


class TextTower:
    """The text part of the model that made a store's features; loaded with the first text.

    `backbone` names the model if a store is not trusted to say it.
    """

    def __init__(self, manifest: Manifest, backbone: str | None = None) -> None:
        spec = manifest.backbone
        problem = f"the run's backbone {spec.name} has no text tower; search by example"
        if not (backbone or manifest.made_by.get("backbone", spec.name)).startswith("hf:"):
            raise SearchError(problem)
        if spec.layers:
            raise SearchError("features of inner layers have no space in common with texts")
        self.spec, self.name = spec, name_to_load(manifest, backbone)
        self.folder: Path = find_folder(self.name.removeprefix("hf:"))
        self.config: Any = read_hub_config(self.folder)
        family = TEXT_FAMILIES.get(self.config.model_type)
        if family is None:
            raise SearchError(problem)
        self.family = family

    def encode(self, text: str) -> TextDirection:
        """A text as a direction of the backbone's features."""
        if not text.strip():
            raise SearchError("the text is empty")
        feature = self._text_feature(text.lower() if self.family.is_lower else text)
        unit = feature / max(float(np.linalg.norm(feature)), 1e-12)
        if self._projection is None:
            return TextDirection(direction=unit)
        return TextDirection(direction=self._projection.T @ unit, projection=self._projection)

    @torch.inference_mode()
    def _text_feature(self, text: str) -> Float[np.ndarray, " S"]:
        """The text in the shared space."""
        longest = int(self.config.text_config.max_position_embeddings)
        padding = "max_length" if self.family.is_padded else True
        tokens = self._tokeniser(
            [text], padding=padding, truncation=True, max_length=longest, return_tensors="pt"
        )
        names = ("input_ids", "attention_mask")
        inputs = {name: tokens[name] for name in names if name in tokens}
        feature = self._model.get_submodule("text_model")(**inputs).pooler_output
        if self.family.head:
            feature = self._model.get_submodule(self.family.head)(feature)
        return np.asarray(feature[0].float().numpy(), np.float32)

    @cached_property
    def _model(self) -> nn.Module:
        """The whole model, if its weights are those that made the features."""
        weights_path = find_weights(self.name.removeprefix("hf:"))
        check_recorded(self.name, sha256_of_files(checkpoint_files(weights_path)), self.spec)
        family = ModelFamily(model_class=self.family.model_class, pool="any", pooling="")
        return load_hub_model(family, self.config, weights_path).eval()

    @cached_property
    def _projection(self) -> Float[np.ndarray, "S D"] | None:
        if not self.family.projection:
            return None
        layer = self._model.get_submodule(self.family.projection)
        assert isinstance(layer, nn.Linear)
        return layer.weight.detach().float().numpy()

    @cached_property
    def _tokeniser(self) -> Any:
        transformers = import_transformers()
        with quiet(transformers):
            try:
                return transformers.AutoTokenizer.from_pretrained(
                    self.folder, local_files_only=True, trust_remote_code=False
                )
            except Exception as error:  # transformers raises many kinds, all about these files
                raise SearchError(
                    f"the tokenizer in {self.folder} cannot be loaded: {error_line(error)}"
                ) from None
