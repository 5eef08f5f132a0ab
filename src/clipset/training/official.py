"""Set transformers of the published code, loaded as clipset models."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final

import torch

from clipset.backbones.checkpoints import CheckpointLayout, State, network_from_state, read_state
from clipset.errors import BackboneError, ModelError
from clipset.model.config import ModelConfig
from clipset.presets import read_preset
from clipset.training.checkpoint import ScaleModel

KEY_PATTERNS: Final = (  # published key, key of ScaleModel
    (r"set_cls_token", r"encoder.set_token"),
    (r"msk_token", r"encoder.mask_token"),
    (r"input_projection\.(weight|bias)", r"encoder.project.\1"),
    (r"pos_encoding_mlp\.0\.(weight|bias)", r"encoder.embed_box.first.\1"),
    (r"pos_encoding_mlp\.2\.(weight|bias)", r"encoder.embed_box.last.\1"),
    (r"transformer\.(\d+)\.(norm[12]\.\w+)", r"encoder.blocks.\1.\2"),
    (r"transformer\.(\d+)\.attn\.qkv\.(weight|bias)", r"encoder.blocks.\1.qkv.\2"),
    (r"transformer\.(\d+)\.attn\.proj\.(weight|bias)", r"encoder.blocks.\1.out.\2"),
    (r"transformer\.(\d+)\.mlp\.fc1\.(weight|bias)", r"encoder.blocks.\1.mlp.0.\2"),
    (r"transformer\.(\d+)\.mlp\.fc2\.(weight|bias)", r"encoder.blocks.\1.mlp.3.\2"),
    (r"norm\.(weight|bias)", r"encoder.norm.\1"),
    (r"set_head\.(\d+)\.weight", r"project_set.\1.weight"),
    (r"dense_pred_head\.(\d+)\.weight", r"predict_clip.\1.weight"),
    (r"dense_target_head\.(\d+)\.weight", r"project_clip.\1.weight"),
)


def load_official(path: Path) -> ScaleModel:
    """A model from a checkpoint of the published code; missing or unknown keys are refused."""
    try:
        state = read_state(path, CheckpointLayout(levels=("student",)))
        tensors = _rename_keys(state)
        dim, config = _infer_sizes(tensors)
        tensors["encoder.feature_mean"] = torch.zeros(dim)
        tensors["encoder.feature_std"] = torch.ones(dim)
        layout = CheckpointLayout()
        return network_from_state(lambda: ScaleModel(dim, config), tensors, layout, path).eval()
    except BackboneError as error:
        raise ModelError(str(error)) from None
    except (KeyError, TypeError, ValueError, ArithmeticError) as error:
        raise ModelError(
            f"{path} is not a published set transformer: missing keys or other shapes ({error})"
        ) from None


def _rename_keys(state: State) -> State:
    """The tensors under the keys of ScaleModel; unknown keys stay as they are."""
    tensors = {}
    for key, tensor in state.items():
        pattern = next((p for p in KEY_PATTERNS if re.fullmatch(p[0], key)), None)
        name = key if pattern is None else re.sub(*pattern, key)
        tensors[name] = tensor.flatten() if key.endswith("_token") else tensor
    return tensors


def _infer_sizes(tensors: State) -> tuple[int, ModelConfig]:
    """The sizes of a model by its tensors; attention heads have 32 channels, as published."""
    width, dim = tensors["encoder.project.weight"].shape
    blocks = {name.split(".")[2] for name in tensors if name.startswith("encoder.blocks.")}
    *hidden, projection_dim = _layer_widths(tensors, "project_set")
    *target_hidden, _ = _layer_widths(tensors, "project_clip")
    published = read_preset("official")["pretrain"]["model"]
    sizes = {
        "width": width,
        "num_layers": len(blocks),
        "mlp_ratio": len(tensors["encoder.blocks.0.mlp.0.weight"]) // width,
        "projection_hidden": tuple(hidden),
        "target_hidden": tuple(target_hidden),
        "projection_dim": projection_dim,
    }
    return dim, ModelConfig(**published | sizes)


def _layer_widths(tensors: State, head: str) -> list[int]:
    """The output widths of the linear layers of a projection head."""
    weights = {int(k.split(".")[1]): t for k, t in tensors.items() if k.startswith(f"{head}.")}
    return [len(weights[index]) for index in sorted(weights)]
