"""Checkpoint files: read without running code, their keys mapped to those of a network.

Every key of a file is used or ignored by name; anything else is an error that lists the keys.
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
Network = TypeVar("Network", bound=nn.Module)

MAX_LISTED = 4  # keys that an error lists before it counts the rest
BLOCK_KEY = re.compile(r"(?!decoder|predictor)(?:.*\.)?(?:blocks|layer)\.(\d+)\.")
PATCH_KEY = re.compile(r"patch_embed(dings)?\.(proj|projection)\.weight$")

KINDS = (  # keys that tell whose checkpoint it is
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
class CheckpointLayout:
    """The layout of a kind of checkpoint.

    The state is in the first of the `levels` that the file has, else at the top. The first of the
    `prefixes` that occurs is removed from the keys. `ignored_keys` are patterns of unneeded keys.
    `file_key` gives the name that a key of the network has in the file, if that is another one.
    """

    levels: tuple[str, ...] = ()
    prefixes: tuple[str, ...] = ("",)
    ignored_keys: tuple[str, ...] = ()
    file_key: Callable[[str], str] | None = None


def read_checkpoint(path: Path) -> dict[str, Any]:
    """The content of a checkpoint, read without running anything that is in it."""
    if not path.is_file():
        raise BackboneError(f"checkpoint {path} not found")
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
    """Refuse at once what is not a checkpoint, or is truncated; the first bytes otherwise."""
    with path.open("rb") as file:
        first_bytes = file.read(64)
    if not first_bytes:
        raise BackboneError(f"{path} is empty; download it again")
    if first_bytes.lstrip()[:1] == b"<":
        raise BackboneError(f"{path} is a web page, not a checkpoint; download the file itself")
    if first_bytes.startswith(b"version https://git-lfs"):
        raise BackboneError(f"{path} is a git-lfs pointer, not a checkpoint; run `git lfs pull`")
    if first_bytes[:2] == b"PK" and not zipfile.is_zipfile(path):
        raise BackboneError(f"{path} is truncated; download it again")
    if first_bytes[8:9] == b"{":
        try:
            safetensors.safe_open(path, framework="pt")
        except safetensors.SafetensorError as error:
            truncated = "not fully covered" in str(error) or "invalid header length" in str(error)
            reason = "truncated" if truncated else f"damaged ({error})"
            raise BackboneError(f"{path} is {reason}; download it again") from None
    return first_bytes


def read_state(path: Path, layout: CheckpointLayout) -> State:
    """The tensors of a checkpoint by name, one level down if the file is nested."""
    content = read_checkpoint(path)
    level_name = next((name for name in layout.levels if isinstance(content.get(name), dict)), None)
    state = content if level_name is None else content[level_name]
    return check_state(state, f"{path}, level {level_name!r}" if level_name else str(path))


def check_state(content: Mapping[str, Any], source: str) -> State:
    """The same mapping if it holds tensors only, without the prefix `module.` of all keys."""
    other_keys = [str(key) for key, value in content.items() if not isinstance(value, Tensor)]
    if other_keys:
        levels = [level for level in content.values() if isinstance(level, Mapping)]
        inner_state = {k: v for level in levels for k, v in level.items() if isinstance(v, Tensor)}
        raise BackboneError(
            f"{source} holds more than the tensors of a network ({list_keys(other_keys)}); "
            f"{describe_state(inner_state)}"
        )
    is_wrapped = bool(content) and all(key.startswith("module.") for key in content)
    return {
        key.removeprefix("module.") if is_wrapped else key: value for key, value in content.items()
    }


def load_checkpoint(build: Callable[[], Network], layout: CheckpointLayout, path: Path) -> Network:
    """The network that `build` makes, with the tensors of a checkpoint."""
    return network_from_state(build, read_state(path, layout), layout, path)


def network_from_state(
    build: Callable[[], Network], state: State, layout: CheckpointLayout, path: Path
) -> Network:
    """The network that `build` makes, with the tensors of `state`, in float32."""
    with torch.device("meta"):
        network = build()
    matched_state = match_keys(network, state, layout, path)
    check_finite(matched_state, path)
    copied_state = {  # the file is not needed any more
        key: tensor.to(torch.float32 if tensor.is_floating_point() else tensor.dtype, copy=True)
        for key, tensor in matched_state.items()
    }
    network.load_state_dict(copied_state, strict=True, assign=True)
    return network


def match_keys(network: nn.Module, state: State, layout: CheckpointLayout, path: Path) -> State:
    """The tensors under the names of `network`; every key must be used or ignored by name."""
    expected_state = network.state_dict()
    if layout.file_key is not None:
        network_keys = {layout.file_key(key): key for key in expected_state}
        state = {network_keys.get(key, key): tensor for key, tensor in state.items()}
    needed = {
        key: tensor
        for key, tensor in state.items()
        if not any(re.fullmatch(pattern, key) for pattern in layout.ignored_keys)
    }
    prefix = next((p for p in layout.prefixes if any(key.startswith(p) for key in needed)), "")
    named_state = {key.removeprefix(prefix): tensor for key, tensor in needed.items()}
    if len(named_state) < len(needed):
        raise BackboneError(f"{path} has keys with and without the prefix {prefix!r}")
    problems = describe_mismatch(
        missing=[key for key in expected_state if key not in named_state],
        unknown=[key for key in named_state if key not in expected_state],
        shapes=[
            f"{key}: {tuple(named_state[key].shape)} instead of {tuple(tensor.shape)}"
            for key, tensor in expected_state.items()
            if key in named_state and named_state[key].shape != tensor.shape
        ],
    )
    if problems:
        raise BackboneError(f"{path} does not fit: {problems}; {describe_state(state)}")
    return named_state


def describe_mismatch(*, missing: list[str], unknown: list[str], shapes: list[str]) -> str:
    """The keys of a checkpoint that do not fit a network, as a text; empty if all do."""
    problem_kinds = (("missing", missing), ("unknown", unknown), ("of another shape", shapes))
    problems = [f"{len(keys)} {kind} ({list_keys(keys)})" for kind, keys in problem_kinds if keys]
    return f"keys {', '.join(problems)}" if problems else ""


def check_finite(state: Mapping[str, Tensor], path: Path) -> None:
    """Refuse weights with NaN or infinity."""
    key = first_nonfinite(state)
    if key is not None:
        raise BackboneError(f"{path}: the tensor {key} holds NaN or infinity; it is damaged")


def first_nonfinite(state: Mapping[str, Tensor]) -> str | None:
    """The name of the first tensor that holds NaN or infinity, if there is one."""
    floating = ((key, tensor) for key, tensor in state.items() if tensor.is_floating_point())
    return next((key for key, tensor in floating if not torch.isfinite(tensor).all()), None)


def describe_state(state: State) -> str:
    """Whose checkpoint this looks like, in a few words."""
    network_kind = next(
        (name for pattern, name in KINDS if any(re.fullmatch(pattern, key) for key in state)), None
    )
    if network_kind is None:
        return "it is of an unknown network"
    width = next((tensor.shape[0] for key, tensor in state.items() if PATCH_KEY.search(key)), None)
    depth = len({match[1] for key in state if (match := BLOCK_KEY.match(key))})
    size = f" (width {width}, {depth} blocks)" if width and depth else ""
    return f"it looks like {network_kind}{size}"


def list_keys(keys: Iterable[str]) -> str:
    """The first few keys and how many more there are."""
    keys = list(keys)
    more = f" and {len(keys) - MAX_LISTED} more" if len(keys) > MAX_LISTED else ""
    return ", ".join(keys[:MAX_LISTED]) + more


def _read_torch(path: Path, zipped: bool) -> object:
    """A torch checkpoint; besides tensors and plain Python it may hold an argparse.Namespace."""
    try:
        with warnings.catch_warnings(), torch.serialization.safe_globals([argparse.Namespace]):
            warnings.simplefilter("ignore")
            return torch.load(path, map_location="cpu", weights_only=True, mmap=zipped)
    except pickle.UnpicklingError as error:
        match = re.search(r"GLOBAL (\S+)", str(error))
        if match is None:
            raise BackboneError(f"{path} is not a checkpoint that torch saved") from None
        raise BackboneError(
            f"{path} holds more than weights: it asks for {match[1]}, and clipset runs no code "
            "from a file; ask its author for a file of tensors only (safetensors)"
        ) from None
    except Exception as error:  # the unpickler of torch raises anything on odd bytes
        truncated = isinstance(error, EOFError) or "unexpected EOF" in str(error)
        reason = "is truncated; download it again" if truncated else "is not a checkpoint of torch"
        raise BackboneError(f"{path} {reason} ({type(error).__name__})") from None
