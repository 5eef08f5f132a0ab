"""Set transformers that the paper's authors trained, as models of ours."""

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
from clipset.model.scale import ScaleModel
from clipset.presets import read_preset

NAMES: Final = (  # their keys, ours
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
    """A model from a checkpoint of the published code; every key is used, or it is refused."""
    try:
        content = read_checkpoint(path)
        state = check_state(_student(content), str(path))
        check_finite(state, path)
    except BackboneError as error:
        raise ModelError(str(error)) from None
    named = _renamed(state, path)
    model = _build(named, path)
    wanted = model.state_dict()
    named |= {name: wanted[name] for name in ("encoder.feature_mean", "encoder.feature_std")}
    missing = [name for name in wanted if name not in named]
    unknown = [name for name in named if name not in wanted]
    shapes = [n for n in wanted if n in named and wanted[n].shape != named[n].shape]
    if missing or unknown or shapes:
        raise ModelError(
            f"{path} does not fit a published set transformer: "
            f"{list_keys([*missing, *unknown, *shapes])} missing, unknown or of another shape"
        )
    model.load_state_dict(named)
    return model.eval()


def _student(content: dict[str, object]) -> Mapping[str, object]:
    inner = content.get("student", content)
    if not isinstance(inner, Mapping):
        raise BackboneError("the level 'student' of the checkpoint holds no weights")
    return inner


def _renamed(state: State, path: Path) -> State:
    named, strange = {}, []
    for key, tensor in state.items():
        found = next((p for p in NAMES if re.fullmatch(p[0], key)), None)
        if found is None:
            strange.append(key)
            continue
        value = tensor.detach().to(torch.float32)
        named[re.sub(*found, key)] = value.flatten() if key.endswith("_token") else value
    if strange:
        raise ModelError(
            f"{path} is not a published set transformer: unknown keys {list_keys(strange)}"
        )
    return named


def _build(named: State, path: Path) -> ScaleModel:
    """A model of the sizes that the tensors have; the published rule is 32 channels for a head."""
    try:
        width, dim = _shape(named["encoder.project.weight"])
        projected, head_width = _shape(named[_last(named, "project_set")])
        config = ModelConfig(
            **{
                **read_preset("official")["pretrain"]["model"],
                "width": width,
                "layers": _count(named, r"encoder\.blocks\.(\d+)\..*"),
                "expansion": len(named["encoder.blocks.0.mlp.0.weight"]) // width,
                "head_width": head_width,
                "head_layers": _count(named, r"project_set\.(\d+)\.weight"),
                "target_width": _shape(named["project_clip.0.weight"])[0],
                "target_layers": _count(named, r"project_clip\.(\d+)\.weight"),
                "projected": projected,
            }
        )
    except KeyError as error:
        raise ModelError(f"{path} is no published set transformer: it lacks {error}") from None
    return ScaleModel(dim, config)


def _last(named: State, head: str) -> str:
    numbers = [int(name.split(".")[1]) for name in named if name.startswith(f"{head}.")]
    return f"{head}.{max(numbers, default=0)}.weight"


def _count(named: State, pattern: str) -> int:
    return len({match[1] for name in named if (match := re.fullmatch(pattern, name))})


def _shape(matrix: Tensor) -> tuple[int, int]:
    if matrix.ndim != 2:
        raise ModelError(f"a published set transformer has matrices, got {tuple(matrix.shape)}")
    return matrix.shape[0], matrix.shape[1]
