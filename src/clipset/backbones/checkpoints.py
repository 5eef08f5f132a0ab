"""Checkpoint files: how they are read without running code, and how their keys map.

Every key of a file is used or named as dropped; anything else is an error that lists the keys.
"""

from __future__ import annotations

import argparse
import pickle
import re
import warnings
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from clipset.errors import BackboneError

State = dict[str, Tensor]
N = TypeVar("N", bound=nn.Module)

SHOWN = 4  # how many keys an error lists before it counts the rest

KINDS = (  # what some keys say about whose checkpoint it is
    (r"videomae\.embeddings\..*", "VideoMAE in Hugging Face format"),
    (r"(encoder\.)?blocks\.0\.attn\.q_bias", "VideoMAE"),
    (r"(.*\.)?blocks\.0\.temporal_fc\.weight", "SVT or TimeSformer"),
    (r"(.*\.)?s1\.pathway1_stem\..*", "a two-pathway SlowFast network"),
    (r"backbone_hist\..*pathway0.*", "a PySlowFast contrastive network"),
    (r"(.*\.)?s1\.pathway0_stem\..*", "a PySlowFast network without a momentum copy"),
    (r"(.*\.)?layer_scale1\.lambda1", "DINOv2 in Hugging Face format"),
    (r"blocks\.0\.ls1\.gamma", "DINOv2"),
    (r"predictor\..*", "V-JEPA in Hugging Face format"),
    (r"(module\.)?backbone\.blocks\.0\..*", "V-JEPA"),
    (r"(.*\.)?timesformer\..*", "TimeSformer in Hugging Face format"),
    (r"(.*\.)?vivit\..*", "ViViT in Hugging Face format"),
    (r"(vision_model|visual)\..*", "CLIP or SigLIP"),
    (r"(_)?conv_stem\.weight|stem\.(0|conv)\.weight", "EfficientNet"),
    (r"(.*\.)?[Cc]onv(_1a|3d_1a_7x7)\.(conv|conv3d)\.weight", "I3D"),
    (r"layer1\.0\.conv1\.weight", "an image ResNet"),
    (r"set_cls_token|set_head\..*", "a set transformer, not a backbone"),
    (r"blocks\.0\..*", "a vision transformer"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """How a kind of file is laid out.

    `nests`: levels to look for, the first that is there is entered. `keeps`: prefixes of the keys
    to keep, the first that occurs is taken off. `drops`: patterns of keys that are not needed.
    """

    nests: tuple[str, ...] = ()
    keeps: tuple[str, ...] = ("",)
    drops: tuple[str, ...] = ()


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, read without running anything that is in it."""
    if not path.is_file():
        raise BackboneError(f"there is no checkpoint at {path}")
    head = check_file(path)
    if head[8:9] == b"{":
        return dict(safetensors.torch.load_file(path))
    content = _read_torch(path, zipped=head[:2] == b"PK")
    if not isinstance(content, dict) or not content:
        raise BackboneError(
            f"{path} holds a {type(content).__name__}, not the weights of a network"
        )
    return content


def check_file(path: Path) -> bytes:
    """Refuse at once what is no checkpoint, or is cut off; the first bytes if all is well."""
    with path.open("rb") as file:
        head = file.read(64)
    if not head:
        raise BackboneError(f"{path} is empty; download it again")
    if head.lstrip()[:1] == b"<":
        raise BackboneError(f"{path} is a web page, not a checkpoint; download the file itself")
    if head.startswith(b"version https://git-lfs"):
        raise BackboneError(f"{path} is a git-lfs pointer, not a checkpoint; run `git lfs pull`")
    if head[:2] == b"PK" and not zipfile.is_zipfile(path):
        raise BackboneError(f"{path} is truncated; download it again")
    if head[8:9] == b"{":
        _check_safetensors(path)
    return head


def read_state(path: Path, layout: Layout) -> State:
    """The tensors of a checkpoint by name, one level down if the file is nested."""
    content = read_checkpoint(path)
    nest = next((name for name in layout.nests if isinstance(content.get(name), dict)), None)
    state = content if nest is None else content[nest]
    return state_of(state, f"{path}, level {nest!r}" if nest else str(path))


def state_of(content: Mapping[str, Any], where: str) -> State:
    """The same mapping once it is sure that it holds tensors only; `module.` is taken off."""
    strange = [str(key) for key, value in content.items() if not isinstance(value, Tensor)]
    if strange:
        levels = [level for level in content.values() if isinstance(level, Mapping)]
        inside = {k: v for level in levels for k, v in level.items() if isinstance(v, Tensor)}
        raise BackboneError(
            f"{where} holds more than the tensors of a network ({listed(strange)}); "
            f"{describe(inside)}"
        )
    wrapped = bool(content) and all(key.startswith("module.") for key in content)
    return {
        key.removeprefix("module.") if wrapped else key: value for key, value in content.items()
    }


def load_network(build: Callable[[], N], state: State, layout: Layout, path: Path) -> N:
    """The network that `build` makes, with the tensors of `state` and none of its own."""
    with torch.device("meta"):
        network = build()
    load_strictly(network, state, layout, path)
    return network


def load_strictly(network: nn.Module, state: State, layout: Layout, path: Path) -> None:
    """Put the tensors of `state` into `network`, in float32."""
    named = match_keys(network, state, layout, path)
    check_finite(named, path)
    owned = {key: _own(tensor) for key, tensor in named.items()}
    network.load_state_dict(owned, strict=True, assign=True)


def match_keys(network: nn.Module, state: State, layout: Layout, path: Path) -> State:
    """The tensors under the names of `network`; every key must be used or dropped by name."""
    named = _name(state, layout, path)
    wanted = network.state_dict()
    problems = [
        f"{len(keys)} {word} ({listed(keys)})"
        for word, keys in (
            ("missing", [key for key in wanted if key not in named]),
            ("unknown", [key for key in named if key not in wanted]),
            ("of another shape", _other_shapes(wanted, named)),
        )
        if keys
    ]
    if problems:
        raise BackboneError(f"{path} does not fit: keys {', '.join(problems)}; {describe(state)}")
    return named


def check_finite(state: State, path: Path) -> None:
    """Refuse weights that are not numbers."""
    key = not_finite(state)
    if key is not None:
        raise BackboneError(f"{path}: the tensor {key} holds NaN or infinity; it is damaged")


def not_finite(state: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or infinity, if there is one."""
    return next(
        (
            key
            for key, tensor in state.items()
            if tensor.is_floating_point() and not torch.isfinite(tensor).all()
        ),
        None,
    )


def describe(state: State) -> str:
    """Whose checkpoint this looks like, in a few words."""
    kind = next(
        (name for pattern, name in KINDS if any(re.fullmatch(pattern, key) for key in state)), None
    )
    if kind is None:
        return "it is no network that clipset knows"
    width = next((t.shape[0] for key, t in state.items() if _is_patch_weight(key)), None)
    depth = len({match[1] for key in state if (match := re.match(_BLOCK, key))})
    size = f" (width {width}, {depth} blocks)" if width and depth else ""
    return f"it looks like {kind}{size}"


def listed(keys: Iterable[str]) -> str:
    """The first few keys and how many more there are."""
    keys = list(keys)
    more = f" and {len(keys) - SHOWN} more" if len(keys) > SHOWN else ""
    return ", ".join(keys[:SHOWN]) + more


_BLOCK = re.compile(r"(?!decoder|predictor)(?:.*\.)?(?:blocks|layer)\.(\d+)\.")


def _is_patch_weight(key: str) -> bool:
    return re.search(r"patch_embed(dings)?\.(proj|projection)\.weight$", key) is not None


def _name(state: State, layout: Layout, path: Path) -> State:
    """The keys that are not dropped, without their prefix."""
    kept = {
        key: tensor
        for key, tensor in state.items()
        if not any(re.fullmatch(pattern, key) for pattern in layout.drops)
    }
    prefix = next((p for p in layout.keeps if any(key.startswith(p) for key in kept)), "")
    named = {key.removeprefix(prefix): tensor for key, tensor in kept.items()}
    if len(named) < len(kept):
        raise BackboneError(f"{path} has keys with and without the prefix {prefix!r}")
    return named


def _other_shapes(wanted: State, named: State) -> list[str]:
    return [
        f"{key}: {tuple(named[key].shape)} instead of {tuple(wanted[key].shape)}"
        for key in wanted
        if key in named and named[key].shape != wanted[key].shape
    ]


def _own(tensor: Tensor) -> Tensor:
    """A copy that does not need the file any more, in float32 unless it counts something."""
    return tensor.to(torch.float32, copy=True) if tensor.is_floating_point() else tensor.clone()


def _check_safetensors(path: Path) -> None:
    try:
        with safetensors.safe_open(path, framework="pt"):
            pass
    except safetensors.SafetensorError as error:
        cut = "not fully covered" in str(error) or "invalid header length" in str(error)
        reason = "truncated" if cut else f"damaged ({error})"
        raise BackboneError(f"{path} is {reason}; download it again") from None


def _read_torch(path: Path, zipped: bool) -> object:
    """A torch checkpoint; besides tensors and plain Python it may hold an argparse.Namespace."""
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        raise BackboneError(_why_refused(path, str(error))) from None
    except Exception as error:  # the unpickler of torch lets through what odd bytes make of it
        cut = isinstance(error, EOFError) or "unexpected EOF" in str(error)
        reason = "is truncated; download it again" if cut else "is not a checkpoint of torch"
        raise BackboneError(f"{path} {reason} ({type(error).__name__})") from None


def _why_refused(path: Path, message: str) -> str:
    found = re.search(r"GLOBAL (\S+)", message)
    if found is None:
        return f"{path} is not a checkpoint that torch saved"
    return (
        f"{path} holds more than weights: it asks for {found[1]}, and clipset runs no code from a "
        "file; ask its author for a file of tensors only (safetensors)"
    )
