"""A training step of one method in a process of its own: its memory and its speed.

Started by resources.py as `step_worker.py REQUEST`, with the request as JSON; prints a StepCost.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import msgspec
import torch
from torch import Tensor, nn

from clipset.networks.video_transformers import VideoMAEConfig
from clipset.recipe import load_settings
from clipset.ssl.methods import SelfSupervisedMethod, make_method
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig
from clipset.training.data import tensors_of
from clipset.training.optim import Optimization, choose_precision, decay_groups
from clipset.training.speed import random_pair

Method = Literal["moco", "videomae", "sparse-moco", "scale"]
NUM_STEPS = 3  # the fastest one counts
SLOW_STEP = 10.0  # seconds; one such step is enough
OUT_OF_MEMORY = 77  # exit code
DROP = 0.9  # of the tokens: VideoMAE, sparse MoCo v3


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRequest:
    """Which step to run: a method, the videos in its batch, the network."""

    method: Method
    batch: int
    network: VideoMAEConfig
    device: str = "cpu"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What a step cost, in bytes and seconds.

    `state_bytes` are weights, their averages, and the optimiser's state; `gradient_bytes` the
    gradients of the weights, and `head_bytes` those of the weights outside the encoder, which come
    first; `saved_bytes` the inputs and what the forward pass keeps for the backward pass, and
    `largest_bytes` the largest tensor of it. On a CPU, seconds are of processor time
    on all threads, divided by their number: other programs do not count.
    """

    peak_bytes: int
    state_bytes: int
    gradient_bytes: int
    head_bytes: int
    saved_bytes: int
    largest_bytes: int
    seconds: float


def measure_step(request: StepRequest) -> StepCost:
    """Run a few training steps; the optimiser has its state before the first one."""
    device = torch.device(request.device)
    torch.manual_seed(0)
    _load_libraries(request, device)
    base_bytes = 0 if device.type == "cuda" else _resident_bytes("VmRSS")
    module, loss_of_step, inputs = make_step(request, device)
    module.to(device).train()
    optimization = Optimization(
        module, decay_groups(module, 0.0), learning_rate=0.0, num_steps=1, max_grad_norm=None
    )
    _allocate_moments(module, optimization)
    saved = SavedTensors(module)
    for tensor in inputs:
        saved.add(tensor)
    dtype = choose_precision("auto" if device.type == "cuda" else "float32", device)
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    seconds: list[float] = []
    while len(seconds) < NUM_STEPS and max(seconds, default=0) < SLOW_STEP:
        started_at = _clock(device)
        with saved.counting() if not seconds else nullcontext():
            mixed = dtype != torch.float32
            with torch.autocast(device.type, dtype) if mixed else nullcontext():
                loss = loss_of_step()
        optimization.step(loss)
        optimization.optimizer.zero_grad(set_to_none=True)
        if isinstance(module, SelfSupervisedMethod):
            module.update_teacher(0.5)
        del loss
        seconds.append(_clock(device) - started_at)
    if device.type == "cuda":
        peak_bytes = torch.cuda.max_memory_allocated(device)
    else:
        peak_bytes = _resident_bytes("VmHWM") - base_bytes
    return StepCost(
        peak_bytes=peak_bytes,
        **_state_bytes(module),
        saved_bytes=saved.num_bytes,
        largest_bytes=saved.largest,
        seconds=min(seconds),
    )


def make_step(
    request: StepRequest, device: torch.device
) -> tuple[nn.Module, Callable[[], Tensor], list[Tensor]]:
    """The module of a method, what computes its loss on a random batch, and that batch."""
    if request.method == "scale":
        config = load_settings(PretrainConfig, "paper")
        model = ScaleModel(request.network.embed_dim, config.model)
        pair = random_pair(request.network.embed_dim, config, request.batch)
        tensors: dict[str, Any] = tensors_of(pair, device)
        return model, lambda: model.losses(**tensors).total, list(tensors.values())
    network = request.network
    method = make_method(request.method, network, DROP)
    shape = (method.num_views, request.batch, network.frames, 3, network.size, network.size)
    views = torch.randn(shape, device=device)
    return method, lambda: method(views), [views]


class SavedTensors:
    """Counts the memory that a forward pass keeps for the backward pass, without the weights."""

    def __init__(self, module: nn.Module) -> None:
        tensors = [*module.parameters(), *module.buffers()]
        self.own = {tensor.untyped_storage().data_ptr() for tensor in tensors}
        self.sizes: dict[int, int] = {}  # bytes by address

    @property
    def num_bytes(self) -> int:
        """The bytes of all of them."""
        return sum(self.sizes.values())

    @property
    def largest(self) -> int:
        """The bytes of the largest one."""
        return max(self.sizes.values(), default=0)

    def add(self, tensor: Tensor) -> Tensor:
        """Count a tensor, once."""
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in self.own:
            self.sizes[storage.data_ptr()] = storage.nbytes()
        return tensor

    def counting(self) -> Any:
        """Count what is saved within."""
        return torch.autograd.graph.saved_tensors_hooks(self.add, lambda tensor: tensor)


def _load_libraries(request: StepRequest, device: torch.device) -> None:
    """A step of a very small network: code that is loaded with the first step is not its memory."""
    network = VideoMAEConfig(embed_dim=64, depth=1, num_heads=2, mlp_dim=64, frames=4, size=32)
    module, loss_of_step, _ = make_step(replace(request, batch=2, network=network), device)
    module.to(device).train()
    groups = decay_groups(module, 0.0)
    Optimization(module, groups, learning_rate=0.0, num_steps=1).step(loss_of_step())


def _allocate_moments(module: nn.Module, optimization: Optimization) -> None:
    """Let the optimiser allocate its state; with a learning rate of 0, no weight changes."""
    for group in optimization.optimizer.param_groups:
        group["lr"] = 0.0
    for parameter in module.parameters():
        if parameter.requires_grad:
            parameter.grad = torch.zeros_like(parameter)
    optimization.optimizer.step()
    optimization.optimizer.zero_grad(set_to_none=True)


def _state_bytes(module: nn.Module) -> dict[str, int]:
    """Bytes of weights with their averages and moments, of gradients, and of those of the heads.

    Of the largest gradient there are two while it is summed over two uses of its weights.
    """
    weights = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    trained = {name: w.nbytes for name, w in module.named_parameters() if w.requires_grad}
    heads = [size for name, size in trained.items() if not name.startswith("encoder.")]
    return {
        "state_bytes": weights + 2 * sum(trained.values()),
        "gradient_bytes": sum(trained.values()) + max(trained.values()),
        "head_bytes": sum(heads) + max(heads),
    }


def _clock(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        return time.perf_counter()
    return time.process_time() / torch.get_num_threads()


def _resident_bytes(field: Literal["VmRSS", "VmHWM"]) -> int:
    """The memory that this process has, or has had at its peak."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise OSError(f"/proc/self/status has no {field}")


def measure_request() -> None:
    """Measure the step of the request and print its cost."""
    request = msgspec.json.decode(sys.argv[1], type=StepRequest)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what libraries print is not the result
    try:
        cost = measure_step(request)
    except (MemoryError, RuntimeError) as error:  # torch raises either
        if isinstance(error, MemoryError | torch.OutOfMemoryError) or "allocate" in str(error):
            sys.exit(OUT_OF_MEMORY)
        raise
    results.write(msgspec.json.encode(cost))
    results.flush()


if __name__ == "__main__":
    measure_request()
