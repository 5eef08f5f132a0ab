"""Table 1 of the paper: memory by batch size, and speed, of SCALE and of methods on pixels.

Every number comes from real training steps, each in a process of its own. A batch that does not fit
into this machine, or would take too long, is predicted: state of the optimisation plus activations
and gradients at the peak of the backward pass. The prediction is checked against every measured
step.
"""

from __future__ import annotations

import math
import os
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import torch

from clipset.config import build, fingerprint, read_json, to_mapping
from clipset.devices import find_device
from clipset.errors import ConfigError
from clipset.files import write_json
from clipset.networks.video_transformers import VideoMAEConfig
from clipset.process.isolation import python_command
from clipset.process.locks import exclusive
from clipset.progress import log
from clipset.recipe import apply_change
from clipset.reproduce.paper import TABLES
from clipset.reproduce.render import write_renderings
from clipset.reproduce.step_worker import DROP, OUT_OF_MEMORY, Method, StepCost, StepRequest
from clipset.reproduce.table import Cell, Measurement, TableFile, open_table, write_table
from clipset.runs import environment
from clipset.ssl.config import WIDTHS
from clipset.ssl.memory import step_bytes
from clipset.training.data import available_memory

ROWS: dict[str, Method] = {
    "MoCo v3": "moco",
    "VideoMAE": "videomae",
    "Sparse MoCo v3": "sparse-moco",
    "SCALE": "scale",
}
SPEED, RATIO, LARGEST = "Samples/s", "SCALE is faster by", "Largest batch in {:g} GB"
GB = 2**30
MEMORY_FRACTION = 0.8  # of the available memory, for a step that is run
STEP_TIMEOUT = 3600.0
COSTS_FILE = "costs.json"
MALLOC = {"MALLOC_MMAP_THRESHOLD_": "65536"}  # freed tensors do not stay in the process


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceSettings:
    """What is measured."""

    vit: str = "base"
    """width and depth of the transformer: mini, tiny, small or base"""
    frames: int = 16
    """frames of a clip"""
    size: int = 224
    """height and width of a clip in pixels"""
    memory: float = 24.0
    """memory of a card in GB"""
    seconds: float = 120.0
    """a step that takes longer, by the speed so far, is predicted"""
    smallest: int = 2
    """videos in the smallest batch, which is always measured"""

    def __post_init__(self) -> None:
        if self.vit not in WIDTHS:
            raise ConfigError(f"vit must be one of {', '.join(WIDTHS)}, got {self.vit!r}")
        if self.memory <= 0 or self.seconds < 0:
            raise ConfigError("memory must be more than 0, and seconds at least 0")
        if self.smallest < 2:
            raise ConfigError(f"smallest must be at least 2 (batch norms), got {self.smallest}")

    @property
    def network(self) -> VideoMAEConfig:
        """The shape of the transformer."""
        width, depth, num_heads = WIDTHS[self.vit]
        return VideoMAEConfig(
            embed_dim=width, depth=depth, num_heads=num_heads, mlp_dim=4 * width,
            frames=self.frames, size=self.size,
        )  # fmt: skip


@dataclass(slots=True)
class MethodCosts:
    """The measured steps of a method by batch size, and predictions for others."""

    costs: dict[int, StepCost]

    def predict_bytes(self, batch: int) -> int:
        """The peak at a batch size: the largest moment of the backward pass."""
        measured = max(self.costs)
        cost = self.costs[measured]
        return cost.state_bytes + max(
            activations * batch // measured + gradients for activations, gradients in cost.moments
        )

    def largest_batch(self, num_bytes: float) -> int:
        """The largest batch whose predicted peak fits."""
        per_video = (self.predict_bytes(1 << 20) - self.predict_bytes(1 << 19)) / (1 << 19)
        batch = max(0, int((num_bytes - self.costs[max(self.costs)].state_bytes) / per_video))
        while batch and self.predict_bytes(batch) > num_bytes:
            batch -= 1
        return batch

    @property
    def errors(self) -> dict[int, float]:
        """The relative error of the prediction for each measured batch size."""
        return {
            batch: self.predict_bytes(batch) / cost.peak_bytes - 1
            for batch, cost in self.costs.items()
        }

    @property
    def samples_per_second(self) -> float:
        """The speed with the fastest batch size."""
        return max(batch / cost.seconds for batch, cost in self.costs.items())


def measure_resources(out: Path, *, device: str = "auto", changes: Sequence[str] = ()) -> TableFile:
    """Measure all methods and write the table in all formats."""
    settings = read_settings(changes)
    torch_device = find_device(device)
    if torch_device.type == "mps":
        raise ConfigError("resources are measured on cpu or cuda, not on mps; use --device cpu")
    if torch_device.type == "cpu" and not Path("/proc/self/status").is_file():
        raise ConfigError("the memory of a process is read from /proc, which is not here; use cuda")
    paper = TABLES["resources"]
    batches = [int(column) for column in paper.columns if column.isdecimal()]
    with exclusive(out):
        table = open_table(out, paper)
        table.data = machine_name(torch_device)
        write_table(table, out)
        record, costs = MeasuredSteps(out, table.data), dict[str, MethodCosts]()
        for row, method in ROWS.items():
            request = StepRequest(
                method=method, batch=settings.smallest, network=settings.network,
                device=str(torch_device),
            )  # fmt: skip
            costs[row] = measure_method(request, batches, settings, record.measure)
        fill_table(table, costs, batches, settings, device=torch_device.type)
        write_renderings(table, out)
    return table


def machine_name(device: torch.device) -> str:
    """The card, or the processor and its threads."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return f"{environment()['processor']}, threads: {torch.get_num_threads()}"


def read_settings(changes: Sequence[str]) -> ResourceSettings:
    """The settings with changes such as `vit=small`."""
    tables: dict[str, object] = {}
    for change in changes:
        apply_change(tables, change)
    return build(ResourceSettings, tables, "the settings")


class MeasuredSteps:
    """The costs that were measured in a folder: a step is run once on a machine."""

    def __init__(self, folder: Path, machine: str) -> None:
        self.path, self.machine = folder / COSTS_FILE, machine
        self.content: dict[str, Any] = read_json(self.path) if self.path.is_file() else {}

    def measure(self, request: StepRequest) -> StepCost | None:
        """The recorded cost of a step, or that of running it now."""
        key = fingerprint(request, self.machine)
        if key not in self.content:
            self.content[key] = to_mapping(run_step(request))
            write_json(self.path, self.content)
        cost = self.content[key]
        return None if cost is None else build(StepCost, cost, str(self.path))


def measure_method(
    request: StepRequest,
    batches: Sequence[int],
    settings: ResourceSettings,
    measure: Callable[[StepRequest], StepCost | None],
) -> MethodCosts:
    """Run a step of the smallest batch, then of every other that fits and is fast enough."""
    costs = MethodCosts({})
    larger_batches = sorted(batch for batch in batches if batch > settings.smallest)
    for batch in (settings.smallest, *larger_batches):
        own = replace(request, batch=batch)
        needed = costs.predict_bytes(batch) if costs.costs else estimate_bytes(own)
        free = MEMORY_FRACTION * available_memory() if own.device == "cpu" else math.inf
        is_slow = bool(costs.costs) and batch / costs.samples_per_second > settings.seconds
        if needed > min(settings.memory * GB, free) or is_slow:
            break
        cost = measure(own)
        if cost is None:
            break
        costs.costs[batch] = cost
        log(
            f"{own.method}, batch {batch}: {cost.peak_bytes / GB:.2f} GB, "
            f"{batch / cost.seconds:.3g} samples/s"
        )
    if not costs.costs:
        raise ConfigError(
            f"a step of {request.method} with {settings.smallest} videos needs about "
            f"{needed / GB:.1f} GB, which is not free; use a smaller transformer: --set vit=small"
        )
    return costs


def estimate_bytes(request: StepRequest) -> int:
    """The memory of a step before any was measured."""
    if request.method == "scale":
        return GB // 2
    return step_bytes(request.method, request.network, drop=DROP, batch=request.batch)


def run_step(request: StepRequest) -> StepCost | None:
    """The cost of a step, measured in a process of its own; None if memory does not suffice."""
    text = msgspec.json.encode(request).decode()
    command = python_command("clipset.reproduce.step_worker", text)
    try:
        done = subprocess.run(
            command, env=os.environ | MALLOC, capture_output=True, timeout=STEP_TIMEOUT, check=False
        )
    except subprocess.TimeoutExpired:
        raise ConfigError(f"a step of {request.method} took over {STEP_TIMEOUT:g} s") from None
    if done.returncode in (-9, OUT_OF_MEMORY):
        return None
    if done.returncode:
        lines = done.stderr.decode(errors="replace").strip().splitlines() or ["no message"]
        raise ConfigError(f"a step of {request.method} failed: {lines[-1]}")
    return msgspec.json.decode(done.stdout, type=StepCost)


def fill_table(
    table: TableFile,
    costs: Mapping[str, MethodCosts],
    batches: Sequence[int],
    settings: ResourceSettings,
    *,
    device: str,
) -> None:
    """Put measured and predicted numbers into the table, beside the paper's."""
    facts, settings_table = environment(), to_mapping(settings)
    table.recipes[fingerprint(settings_table)] = settings_table
    table.environments[fingerprint(facts)] = facts
    paper_speed = {row: float(text) for row, column, text in table.paper if column == SPEED}
    for row, own in costs.items():
        ratio = paper_speed["SCALE"] / paper_speed[row]
        table.paper = [cell for cell in table.paper if cell[:2] != (row, RATIO)]
        table.paper.append((row, RATIO, f"{ratio:,.0f}"))
        for column, measurement in _measurements(own, costs["SCALE"], batches, settings):
            table.put(
                Cell(
                    row=row, column=column, status="done", measurement=measurement,
                    fingerprint=fingerprint(settings, list(own.costs.items())),
                    recipe=fingerprint(settings_table), environment=fingerprint(facts),
                    date=datetime.now(UTC).isoformat(timespec="seconds"),
                    seconds=sum(cost.seconds for cost in own.costs.values()),
                )
            )  # fmt: skip
    table.notes = _notes(costs, settings, device=device)


def _measurements(
    own: MethodCosts, scale: MethodCosts, batches: Sequence[int], settings: ResourceSettings
) -> Iterator[tuple[str, Measurement]]:
    limit = settings.memory
    for batch in batches:
        if batch in own.costs:
            yield str(batch), Measurement(value=own.costs[batch].peak_bytes / GB, limit=limit)
        else:
            predicted = own.predict_bytes(batch) / GB
            yield str(batch), Measurement(value=predicted, kind="predicted", limit=limit)
    yield SPEED, Measurement(value=own.samples_per_second)
    yield RATIO, Measurement(value=scale.samples_per_second / own.samples_per_second)
    largest = own.largest_batch(limit * GB)
    yield LARGEST.format(limit), Measurement(value=float(largest), kind="predicted")


def _notes(
    costs: Mapping[str, MethodCosts], settings: ResourceSettings, *, device: str
) -> list[str]:
    """How the numbers were measured, and how far predictions are off."""
    where = (
        "Peak of the resident memory of a process, without that of Python and its libraries, in "
        "single precision; samples/s by processor time on all threads, so that other programs do "
        "not count."
        if device == "cpu"
        else "Peak of the allocated memory of the card, with autocast; samples/s by the clock."
    )
    errors = "; ".join(
        f"{row}: " + ", ".join(f"{error:+.1%} at {b}" for b, error in own.errors.items())
        for row, own in costs.items()
    )
    return [
        f"Training steps of ViT {settings.vit} on {settings.frames} × {settings.size} × "
        f"{settings.size} video; SCALE on stored features, preset paper. Memory in GiB "
        f"by batch size; OOM: more than {settings.memory:g} GB.",
        f"{where} The paper: one RTX 3090.",
        "≈: predicted from the weights, the optimiser's state, what the forward pass keeps, and "
        "when the backward pass frees it. "
        f"Error of the prediction where it was measured: {errors}.",
    ]
