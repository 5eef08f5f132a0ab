"""Checkpoints of a run that is not finished: one file each, whole or not at all, the last n kept.

Each holds the weights, the optimiser's state, and, in its header, which run it belongs to and how
far that was.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
from safetensors import SafetensorError, safe_open
from safetensors.torch import save
from torch import Tensor, nn, optim

from clipset.checksums import find_damage, seal
from clipset.config import parse_json, to_mapping, write_atomic, writing
from clipset.errors import ConfigError, TrainingError
from clipset.progress import say
from clipset.training.weights import load_file

FORMAT = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class RunState:
    """How far a run is, and which run it is: equal fingerprints go on where the other stopped."""

    fingerprint: str
    epoch: int
    settings: dict[str, Any]
    dim: int
    seed: int
    best: tuple[float, int] | None = None
    scaler: dict[str, Any] = field(default_factory=dict)
    format: int = FORMAT


def write_checkpoint(
    folder: Path,
    state: RunState,
    optimiser: optim.Optimizer,
    model: nn.Module,
    *,
    keep: int,
) -> None:
    """Write everything that a killed run needs to go on as if nothing had happened."""
    tensors = {f"model.{name}": value for name, value in model.state_dict().items()}
    for number, slot in optimiser.state_dict()["state"].items():
        tensors |= {f"optimiser.{number}.{name}": value for name, value in slot.items()}
    plain = {name: value.detach().to("cpu").contiguous() for name, value in tensors.items()}
    header = {"state": msgspec.json.encode(to_mapping(state)).decode()}
    write_atomic(_path(folder, state.epoch), seal(save(plain, metadata=header)))
    with writing(folder):
        for old in _newest_first(folder)[keep:]:
            old.unlink(missing_ok=True)


def newest_checkpoint(folder: Path) -> RunState | None:
    """The state in the newest checkpoint that is whole; damaged ones are passed over."""
    for path in _newest_first(folder):
        if find_damage(path) is not None:
            say(f"{path.name} is not whole and is passed over")
            continue
        return _read_state(path)
    return None


def find_checkpoint(folder: Path, state: RunState) -> RunState | None:
    """The newest whole checkpoint of the run that `state` is of; another run's is refused."""
    newest = newest_checkpoint(folder)
    if newest is not None and newest.fingerprint != state.fingerprint:
        raise TrainingError(
            f"{folder.parent} holds another run that was stopped at epoch {newest.epoch} "
            f"({what_differs(state, newest)}); use another folder, or delete {folder} to start anew"
        )
    return newest


def _read_state(path: Path) -> RunState:
    try:
        with safe_open(path, "np") as file:
            content = parse_json((file.metadata() or {})["state"], path.name)
        if content["format"] == FORMAT:
            return msgspec.convert(content, RunState)
    except (OSError, SafetensorError, KeyError, TypeError, ConfigError, msgspec.MsgspecError):
        pass
    raise TrainingError(
        f"{path} is no checkpoint of format {FORMAT}; another clipset wrote it: go on with that "
        f"one, or delete {path.parent} to start anew"
    )


def load_checkpoint(
    folder: Path, epoch: int, optimiser: optim.Optimizer, model: nn.Module
) -> RunState:
    """Put a run's weights and optimiser state back as they were after an epoch."""
    path = _path(folder, epoch)
    damage = find_damage(path)
    if damage is not None:  # of another rank's copy
        raise TrainingError(f"the checkpoint {path} is damaged: {damage}; delete it and run again")
    state, tensors = _read_state(path), load_file(path)
    model.load_state_dict(dict(_under(tensors, "model")))
    slots: dict[int, dict[str, Tensor]] = {}
    for name, value in _under(tensors, "optimiser"):
        number, key = name.split(".")
        slots.setdefault(int(number), {})[key] = value
    current = optimiser.state_dict()
    optimiser.load_state_dict({"state": slots, "param_groups": current["param_groups"]})
    return state


def remove_checkpoints(folder: Path) -> None:
    """Delete the checkpoints, and what a kill left of one that was being written."""
    with writing(folder):
        for path in [*_newest_first(folder), *folder.glob(".epoch-*.part")]:
            path.unlink(missing_ok=True)
        if folder.is_dir() and not any(folder.iterdir()):
            folder.rmdir()


def remove_partial_files(folder: Path) -> None:
    """Delete what a kill left of checkpoints that were being written."""
    for path in folder.glob(".epoch-*.part"):
        path.unlink(missing_ok=True)


def what_differs(state: RunState, other: RunState) -> str:
    """In a few words, why two states are not of the same run."""
    if state.dim != other.dim:
        return f"features of width {other.dim}, now {state.dim}"
    if state.seed != other.seed:
        return f"seed {other.seed}, now {state.seed}"
    now, then = dict(_leaves(state.settings)), dict(_leaves(other.settings))
    changed = [
        f"{name} {then.get(name)}, now {now.get(name)}"
        for name in sorted(now | then)
        if now.get(name) != then.get(name)
    ]
    more = f" and {len(changed) - 3} more" if len(changed) > 3 else ""
    return "; ".join(changed[:3]) + more if changed else "other videos or features"


def _leaves(settings: dict[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for name, value in settings.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{before}{name}.")
        else:
            yield f"{before}{name}", value


def _under(tensors: dict[str, Tensor], part: str) -> Iterator[tuple[str, Tensor]]:
    for name, value in tensors.items():
        if name.startswith(f"{part}."):
            yield name.removeprefix(f"{part}."), value


def _path(folder: Path, epoch: int) -> Path:
    return folder / f"epoch-{epoch:06d}.safetensors"


def _newest_first(folder: Path) -> list[Path]:
    return sorted(folder.glob("epoch-*.safetensors"), reverse=True)
