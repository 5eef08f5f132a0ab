"""Set transformers of the published code, loaded as clipset models."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch
from torch import Tensor

from clipset.backbones.checkpoints import (
    State,
    check_finite,
    check_state,
    list_keys,
    read_checkpoint,
)
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
        content = read_checkpoint(path)
        state = check_state(_student(content), str(path))
        check_finite(state, path)
    except BackboneError as error:
        raise ModelError(str(error)) from None
    tensors = _rename_keys(state, path)
    model = _build_model(tensors, path)
    expected = model.state_dict()
    tensors |= {name: expected[name] for name in ("encoder.feature_mean", "encoder.feature_std")}
    missing = [name for name in expected if name not in tensors]
    unknown = [name for name in tensors if name not in expected]
    reshaped = [n for n in expected if n in tensors and expected[n].shape != tensors[n].shape]
    if missing or unknown or reshaped:
        raise ModelError(
            f"{path} does not fit a published set transformer: "
            f"{list_keys([*missing, *unknown, *reshaped])} missing, unknown or of another shape"
        )
    model.load_state_dict(tensors)
    return model.eval()


def _student(content: dict[str, object]) -> Mapping[str, object]:
    student = content.get("student", content)
    if not isinstance(student, Mapping):
        raise BackboneError("the level 'student' of the checkpoint holds no weights")
    return student


def _rename_keys(state: State, path: Path) -> State:
    tensors, unknown = {}, []
    for key, tensor in state.items():
        pattern = next((p for p in KEY_PATTERNS if re.fullmatch(p[0], key)), None)
        if pattern is None:
            unknown.append(key)
            continue
        value = tensor.detach().to(torch.float32)
        tensors[re.sub(*pattern, key)] = value.flatten() if key.endswith("_token") else value
    if unknown:
        raise ModelError(
            f"{path} is not a published set transformer: unknown keys {list_keys(unknown)}"
        )
    return tensors


def _build_model(tensors: State, path: Path) -> ScaleModel:
    """A model of the sizes of the tensors; attention heads have 32 channels, as published."""
    try:
        width, dim = _matrix_shape(tensors["encoder.project.weight"])
        config = ModelConfig(
            **{
                **read_preset("official")["pretrain"]["model"],
                "width": width,
                "num_layers": len(_indices(tensors, r"encoder\.blocks\.(\d+)\..*")),
                "mlp_ratio": len(tensors["encoder.blocks.0.mlp.0.weight"]) // width,
                "projection_hidden": _layer_widths(tensors, "project_set")[:-1],
                "target_hidden": _layer_widths(tensors, "project_clip")[:-1],
                "projection_dim": _layer_widths(tensors, "project_set")[-1],
            }
        )
    except KeyError as error:
        raise ModelError(f"{path} is not a published set transformer: {error} is missing") from None
    return ScaleModel(dim, config)


def _layer_widths(tensors: State, head: str) -> tuple[int, ...]:
    """The output widths of the linear layers of a projection head."""
    indices = _indices(tensors, rf"{head}\.(\d+)\.weight")
    if not indices:
        raise KeyError(f"{head}.0.weight")
    return tuple(_matrix_shape(tensors[f"{head}.{index}.weight"])[0] for index in indices)


def _indices(tensors: State, pattern: str) -> list[int]:
    return sorted({int(match[1]) for name in tensors if (match := re.fullmatch(pattern, name))})


def _matrix_shape(matrix: Tensor) -> tuple[int, int]:
    if matrix.ndim != 2:
        raise ModelError(f"a published set transformer has matrices, got {tuple(matrix.shape)}")
    return matrix.shape[0], matrix.shape[1]
