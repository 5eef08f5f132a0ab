"""Several ranks in one process: threads that exchange their rows, with gradients."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Exchange:
    """Where ranks put their rows and find those of the others."""

    def __init__(self, world_size: int) -> None:
        self.world_size, self.slots = world_size, [torch.empty(0)] * world_size
        self.barrier = threading.Barrier(world_size, timeout=60)


class ThreadGather:
    """Rows of all ranks one after the other; the graph runs through all of them."""

    def __init__(self, exchange: Exchange, rank: int) -> None:
        self.exchange, self.rank, self.world_size = exchange, rank, exchange.world_size

    def __call__(self, rows: Tensor, /) -> Tensor:
        self.exchange.slots[self.rank] = rows
        self.exchange.barrier.wait()
        whole = torch.cat(self.exchange.slots)
        self.exchange.barrier.wait()
        return whole


def run_ranks(ranks: int, work: Callable[[ThreadGather], T]) -> list[T]:
    """What each rank's work gives."""
    exchange, results = Exchange(ranks), {}

    def run(rank: int) -> None:
        try:
            results[rank] = work(ThreadGather(exchange, rank))
        except BaseException:
            exchange.barrier.abort()
            raise

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(ranks)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return [results[rank] for rank in range(ranks)]
