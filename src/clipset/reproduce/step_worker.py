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
from itertools import accumulate
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

    `state_bytes` are weights, their averages, and the optimiser's state. `moments` are those of the
    backward pass that may be its peak: the bytes of activations and their gradients, which grow
    with the batch, and of the weights' gradients, which do not. On a CPU, seconds are of processor
    time on all threads, divided by their number: other programs do not count.
    """

    peak_bytes: int
    state_bytes: int
    moments: tuple[tuple[int, int], ...]
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
        state_bytes=_state_bytes(module),
        moments=saved.moments(),
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
    """What a forward pass keeps for the backward pass, which uses it in the reverse order."""

    def __init__(self, module: nn.Module) -> None:
        self.weights = {  # bytes of their gradients, by address
            tensor.untyped_storage().data_ptr(): tensor.nbytes if tensor.requires_grad else 0
            for tensor in (*module.parameters(), *module.buffers())
        }
        self.uses: list[tuple[int, int]] = []  # address and bytes of what is kept, in order

    def add(self, tensor: Tensor) -> Tensor:
        """Record the use of a tensor."""
        storage = tensor.untyped_storage()
        self.uses.append((storage.data_ptr(), storage.nbytes()))
        return tensor

    def counting(self) -> Any:
        """Record what is saved within."""
        return torch.autograd.graph.saved_tensors_hooks(self.add, lambda tensor: tensor)

    def moments(self) -> tuple[tuple[int, int], ...]:
        """Bytes of activations and of weights' gradients when the backward pass is at each use.

        What was kept up to this use is still there, with two gradients of activations: the one that
        comes in and the one that goes out. All weights that were used later have a gradient; while
        it is summed over two uses of a weight, there are two. Weights that are not kept, such as
        biases, always count. A moment is left out if another one has as much of both.
        """
        activations = dict[int, int]()
        activation_bytes = []
        for address, size in self.uses:
            if address not in self.weights:
                activations[address] = size
            own_bytes = 0 if address in self.weights else size
            activation_bytes.append(sum(activations.values()) + 2 * own_bytes)
        gradients = self.weights | {address: 0 for address, _ in self.uses}
        moments = []
        for (address, _), num_bytes in zip(self.uses[::-1], activation_bytes[::-1], strict=True):
            own_gradient = self.weights.get(address, 0)
            moments.append((num_bytes, sum(gradients.values()) + own_gradient))
            gradients[address] = own_gradient
        moments.sort(reverse=True)
        most_gradients = accumulate((weights for _, weights in moments), max, initial=-1)
        pairs = zip(moments, most_gradients, strict=False)
        return tuple(moment for moment, before in pairs if moment[1] > before)


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


def _state_bytes(module: nn.Module) -> int:
    """Bytes of the weights with their averages, and of their moments."""
    weights = sum(tensor.nbytes for tensor in (*module.parameters(), *module.buffers()))
    trained = sum(weight.nbytes for weight in module.parameters() if weight.requires_grad)
    return weights + 2 * trained


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
