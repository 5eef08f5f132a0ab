"""Distributed training: the processes that train one model together, and what they exchange.

Every process has the whole model and a shard of each batch. A single process exchanges nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Any, TypeVar

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from clipset.devices import find_device
from clipset.errors import ClipsetError, OtherRankError, TrainingError
from clipset.text import escape_undecodable

T = TypeVar("T")
_num_groups = 0  # process groups that this process has joined


class ProcessGroup:
    """This process among those that train together.

    Called with rows, it concatenates those of all ranks: the `Gather` of the losses. Gradients
    return to the rank of each row.
    """

    def __init__(self, rank: int, world_size: int, device: torch.device) -> None:
        self.rank, self.world_size, self.device = rank, world_size, device

    @property
    def is_main(self) -> bool:
        """Whether this is the process that writes files and messages."""
        return self.rank == 0

    @property
    def gather(self) -> ProcessGroup | None:
        """Gathers the vectors of all ranks for the losses; None for a single process."""
        return self if self.world_size > 1 else None

    def __call__(self, rows: Tensor, /) -> Tensor:
        """The rows of rank 0, 1, …; ranks may have different numbers of rows."""
        if rows.dtype == torch.bool:
            return self(rows.to(torch.uint8)).bool()
        return _GatherFunction.apply(rows, self)  # type: ignore[no-untyped-call,no-any-return]

    def shard(self, count: int) -> slice:
        """This rank's part of `count` items; the shards differ by one item at most."""
        base, remainder = divmod(count, self.world_size)
        start = self.rank * base + min(self.rank, remainder)
        return slice(start, start + base + (self.rank < remainder))

    def run(self, work: Callable[[], T]) -> T:
        """Run `work` on every rank; an error on one rank is raised on all of them."""
        result, error, reason = None, None, None
        try:
            result = work()
        except ClipsetError as raised:
            error, reason = raised, " ".join(escape_undecodable(str(raised)).split())
        reasons = self.gather_values(reason)
        failed_rank = next((rank for rank, text in enumerate(reasons) if text is not None), None)
        if failed_rank is None:
            return result  # type: ignore[return-value]
        if not self.is_main:
            raise OtherRankError(reasons[failed_rank])
        raise error or TrainingError(f"rank {failed_rank}: {reasons[failed_rank]}")

    def broadcast(self, number: int) -> int:
        """The number of rank 0."""
        return self.gather_number(number)[0]

    def barrier(self) -> None:
        """Wait for all ranks."""
        self.gather_number(0)

    def gather_number(self, number: int) -> list[int]:
        """The numbers of all ranks."""
        local = torch.tensor(number, dtype=torch.int64, device=self.device)
        return [int(value) for value in self.all_gather(local)]

    def gather_values(self, value: Any) -> list[Any]:
        """The values of all ranks, which JSON can hold."""
        if self.world_size == 1:
            return [value]
        content = torch.tensor(list(msgspec.json.encode(value)), dtype=torch.uint8)
        rows = self.gather_rows(content.to(self.device))
        return [msgspec.json.decode(bytes(own.tolist())) for own in rows]

    def gather_rows(self, rows: Tensor) -> list[Tensor]:
        """The rows of all ranks, which may have different numbers of them."""
        counts = self.gather_number(len(rows))
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        gathered = self.all_gather(padded)
        return [own[:count] for own, count in zip(gathered, counts, strict=True)]

    def all_gather(self, values: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have the same shape."""
        if self.world_size == 1:
            return [values]
        gathered = [torch.empty_like(values) for _ in range(self.world_size)]
        with _communicating():
            dist.all_gather(gathered, values.contiguous())
        return gathered

    def all_reduce(self, values: Tensor) -> None:
        """Replace a tensor by its sum over the ranks."""
        if self.world_size > 1:
            with _communicating():
                dist.all_reduce(values)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the ranks."""
        total = values.detach().clone()
        self.all_reduce(total)
        return total / self.world_size

    def broadcast_weights(self, model: nn.Module) -> None:
        """Give every rank the weights of rank 0."""
        if self.world_size > 1:
            with _communicating():
                for value in model.state_dict().values():
                    dist.broadcast(value, 0)

    def average_gradients(self, model: nn.Module) -> None:
        """Give every rank the mean gradient, in one exchange."""
        if self.world_size == 1:
            return
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        has_gradient = torch.tensor([p.grad is not None for p in trained], device=self.device).int()
        self.all_reduce(has_gradient)
        used = [p for p, count in zip(trained, has_gradient.tolist(), strict=True) if count]
        gradients = [torch.zeros_like(p) if p.grad is None else p.grad for p in used]
        flat = torch.cat([gradient.flatten() for gradient in gradients])
        self.all_reduce(flat)
        flat /= self.world_size
        for parameter, chunk in zip(used, flat.split([p.numel() for p in used]), strict=True):
            parameter.grad = chunk.view_as(parameter).clone()


SINGLE_PROCESS = ProcessGroup(0, 1, torch.device("cpu"))


class _GatherFunction(torch.autograd.Function):
    """Forward: the rows of all ranks. Backward: the sum of all ranks' gradients of these rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, processes: ProcessGroup) -> Tensor:
        gathered = processes.gather_rows(rows)
        ctx.processes, ctx.counts = processes, [len(own) for own in gathered]
        return torch.cat(gathered)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        gradient = gradients[0].contiguous().clone()
        ctx.processes.all_reduce(gradient)
        return gradient.split(ctx.counts)[ctx.processes.rank], None


@contextmanager
def join_process_group(device: str) -> Iterator[ProcessGroup]:
    """The processes that torchrun (or the caller) started, or this process alone."""
    if dist.is_available() and dist.is_initialized():
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), _local_device(device))
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1 and "MASTER_ADDR" in os.environ:
        local_device = _local_device(device)
        _init_process_group("nccl" if local_device.type == "cuda" else "gloo")
        try:
            yield ProcessGroup(dist.get_rank(), dist.get_world_size(), local_device)
        except BaseException as error:
            _release_frames(error)
            raise
        finally:
            dist.destroy_process_group()
    else:
        yield ProcessGroup(0, 1, find_device(device))


def _release_frames(error: BaseException | None) -> None:
    """Remove references to the process group from the frames of an error.

    A referenced group keeps its threads; a thread that releases a tensor while Python ends aborts
    the process.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _init_process_group(backend: str) -> None:
    """Connect to the other processes.

    torchrun may keep one key-value store for all its restarts; a prefix of their own keeps the keys
    of this start apart from those of earlier ones.
    """
    # imported after the group exists (as optimisers do), its functions would keep a reference to it
    import torch.distributed.nn.functional  # noqa: F401

    global _num_groups
    _num_groups += 1
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    store, rank, world_size = next(rendezvous("env://"))
    own_store = PrefixStore(f"clipset-{restart}-{_num_groups}", store)
    dist.init_process_group(backend, store=own_store, rank=rank, world_size=world_size)


def _local_device(name: str) -> torch.device:
    """The CUDA device of this process's local rank, or the CPU."""
    device = find_device(name)
    if device.type != "cuda":
        return torch.device("cpu")
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    if ":" not in name:
        if local_rank >= torch.cuda.device_count():
            raise TrainingError(
                f"rank {local_rank} of this machine has no CUDA device "
                f"({torch.cuda.device_count()} found); start fewer processes or use device 'cpu'"
            )
        device = torch.device("cuda", local_rank)
    torch.cuda.set_device(device)
    return device


@contextmanager
def _communicating() -> Iterator[None]:
    """Communication fails when another rank has stopped."""
    try:
        yield
    except RuntimeError as error:
        raise OtherRankError(
            "another rank stopped; run the same command again to resume"
        ) from error
