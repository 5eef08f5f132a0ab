"""Several processes that train one model together: who they are, and what they exchange.

Every process (a rank) has the whole model and a part of each batch. Alone, nothing is exchanged.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from traceback import clear_frames
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.distributed_c10d import PrefixStore
from torch.distributed.rendezvous import rendezvous

from clipset.devices import find_device
from clipset.errors import ClipsetError, OtherRankError, TrainingError

T = TypeVar("T")
LINE_BYTES = 1000  # of an error that is told to the other ranks
_meetings = 0  # of this process


class Ranks:
    """This process among those that train together."""

    def __init__(self, rank: int, ranks: int, device: torch.device) -> None:
        self.rank, self.ranks, self.device = rank, ranks, device

    @property
    def first(self) -> bool:
        """Whether this is the one that writes and speaks."""
        return self.rank == 0

    @property
    def gather(self) -> RankGather | None:
        """What the losses gather the other ranks' vectors with."""
        return RankGather(self) if self.ranks > 1 else None

    def part(self, count: int) -> slice:
        """Which of `count` things are this rank's: the parts differ by one at most."""
        base, more = divmod(count, self.ranks)
        low = self.rank * base + min(self.rank, more)
        return slice(low, low + base + (self.rank < more))

    def agree(self, work: Callable[[], T]) -> T:
        """Do the same on every rank; if it fails on one, it fails on all, and one says why."""
        result, error = None, None
        try:
            result = work()
        except ClipsetError as found:
            error = found
        if self.ranks == 1:
            if error is not None:
                raise error
        else:
            self._compare(error)
        return result  # type: ignore[return-value]

    def _compare(self, error: ClipsetError | None) -> None:
        line = "" if error is None else " ".join(str(error).split())
        said = line.encode(errors="backslashreplace")[:LINE_BYTES].ljust(LINE_BYTES, b"\0")
        mine = torch.tensor(list(said), dtype=torch.uint8, device=self.device)
        lines = [bytes(each.tolist()).rstrip(b"\0") for each in self.all_gather(mine)]
        failed = [(rank, each.decode(errors="ignore")) for rank, each in enumerate(lines) if each]
        if not failed:
            return
        rank, text = failed[0]
        if not self.first:
            raise OtherRankError(text)
        raise error or TrainingError(f"rank {rank}: {text}")

    def share(self, number: int) -> int:
        """The first rank's number."""
        if self.ranks == 1:
            return number
        told = torch.tensor(number, dtype=torch.int64, device=self.device)
        with _others():
            dist.broadcast(told, 0)
        return int(told)

    def share_weights(self, model: nn.Module) -> None:
        """Start from the first rank's weights."""
        if self.ranks > 1:
            with _others():
                for value in model.state_dict().values():
                    dist.broadcast(value, 0)

    def mean(self, values: Tensor) -> Tensor:
        """The mean over the ranks."""
        if self.ranks == 1:
            return values
        total = values.detach().clone()
        self.add_up(total)
        return total / self.ranks

    def average_gradients(self, model: nn.Module) -> None:
        """Give every rank the mean gradient, in one exchange."""
        if self.ranks == 1:
            return
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        has = torch.tensor([p.grad is not None for p in trained], dtype=torch.uint8)
        has = has.to(self.device)
        with _others():
            dist.all_reduce(has, dist.ReduceOp.MAX)
        moved = [p for p, used in zip(trained, has.tolist(), strict=True) if used]
        found = [torch.zeros_like(p) if p.grad is None else p.grad for p in moved]
        flat = torch.cat([gradient.flatten() for gradient in found])
        self.add_up(flat)
        flat /= self.ranks
        for parameter, part in zip(moved, flat.split([p.numel() for p in moved]), strict=True):
            parameter.grad = part.view_as(parameter).clone()

    def add_up(self, values: Tensor) -> None:
        """Replace a tensor by its sum over the ranks."""
        with _others():
            dist.all_reduce(values)

    def all_gather(self, values: Tensor) -> list[Tensor]:
        """The tensors of all ranks, which have the same shape."""
        found = [torch.empty_like(values) for _ in range(self.ranks)]
        with _others():
            dist.all_gather(found, values.contiguous())
        return found

    def wait(self) -> None:
        """Go on when all ranks are here."""
        self.share(0)


class RankGather:
    """Puts the rows of all ranks behind one another; gradients find their way back to each."""

    def __init__(self, world: Ranks) -> None:
        self.world, self.rank, self.ranks = world, world.rank, world.ranks

    def __call__(self, rows: Tensor) -> Tensor:
        """The rows of rank 0, 1, …; the ranks may have different numbers of them."""
        if rows.dtype == torch.bool:
            return self(rows.to(torch.uint8)).bool()
        gathered: Tensor = _Gathered.apply(rows, self.world)  # type: ignore[no-untyped-call]
        return gathered


class _Gathered(torch.autograd.Function):
    """The rows of all ranks; backwards, what all ranks want changed of this rank's rows."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, world: Ranks) -> Tensor:
        count = torch.tensor(len(rows), dtype=torch.int64, device=world.device)
        counts = [int(each) for each in world.all_gather(count)]
        padded = rows.new_zeros((max(counts), *rows.shape[1:]))
        padded[: len(rows)] = rows
        ctx.world, ctx.counts = world, counts
        parts = zip(world.all_gather(padded), counts, strict=True)
        return torch.cat([part[:size] for part, size in parts])

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        wanted = gradients[0].contiguous().clone()
        ctx.world.add_up(wanted)
        return wanted.split(ctx.counts)[ctx.world.rank], None


@contextmanager
def join_ranks(device: str) -> Iterator[Ranks]:
    """The ranks that torchrun (or the caller) started, or this process alone."""
    if dist.is_available() and dist.is_initialized():
        yield Ranks(dist.get_rank(), dist.get_world_size(), _device_of_rank(device))
    elif int(os.environ.get("WORLD_SIZE", "1")) > 1 and "MASTER_ADDR" in os.environ:
        chosen = _device_of_rank(device)
        _meet("nccl" if chosen.type == "cuda" else "gloo")
        try:
            yield Ranks(dist.get_rank(), dist.get_world_size(), chosen)
        except BaseException as error:
            _empty_frames(error)
            raise
        finally:
            dist.destroy_process_group()
    else:
        yield Ranks(0, 1, find_device(device))


def _empty_frames(error: BaseException | None) -> None:
    """Take the group out of the frames that an error came through.

    As long as something keeps it, it keeps its threads; one of them that lets go of a tensor while
    Python ends aborts the process.
    """
    while error is not None:
        clear_frames(error.__traceback__)
        error = error.__cause__ or error.__context__


def _meet(backend: str) -> None:
    """Set up the talk between the ranks.

    torchrun may keep one board for all its restarts: what an earlier start pinned there would be
    taken for this one's, so each start has a place of its own.
    """
    # imported later (every optimiser does so), its functions would keep this group as a default
    import torch.distributed.nn.functional  # noqa: F401

    global _meetings
    _meetings += 1
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    board, rank, ranks = next(rendezvous("env://"))
    place = PrefixStore(f"clipset-{restart}-{_meetings}", board)
    dist.init_process_group(backend, store=place, rank=rank, world_size=ranks)


def _device_of_rank(name: str) -> torch.device:
    """The card of this rank's number on its machine, or the processor."""
    device = find_device(name)
    if device.type != "cuda":
        return torch.device("cpu")
    place = int(os.environ.get("LOCAL_RANK", "0"))
    if ":" not in name:
        if place >= torch.cuda.device_count():
            raise TrainingError(
                f"rank {place} of this machine has no CUDA device ({torch.cuda.device_count()} "
                f"found); start fewer processes or use device 'cpu'"
            )
        device = torch.device("cuda", place)
    torch.cuda.set_device(device)
    return device


@contextmanager
def _others() -> Iterator[None]:
    """A talk with the other ranks; it breaks off when one of them is gone."""
    try:
        yield
    except RuntimeError as error:
        raise OtherRankError("another rank stopped; run again to go on") from error
