"""Metrics of each epoch, and a warning when the model has collapsed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clipset.config import append_whole, write_atomic
from clipset.errors import OutputError
from clipset.model.scale import ScaleModel
from clipset.progress import say
from clipset.sets.sampling import SetPair
from clipset.training.data import tensors_of

COLLAPSED = 0.02  # a spread below this: all videos look the same to the model
LOOKED_AT = 128  # videos whose set tokens are compared after each epoch
SETTLING = 0.2  # the share of the epochs after which the spread is judged

Line = dict[str, int | float]


@torch.no_grad()
def look_at(model: ScaleModel, pair: SetPair, device: torch.device) -> Line:
    """How different some videos are to the model: of a batch's first sets, nothing hidden."""
    sets = {n: v[0, :LOOKED_AT] for n, v in tensors_of(pair, device).items() if n != "masked"}
    training = model.training
    tokens = model.eval().encode(**sets).set_token.float()
    model.train(training)
    if len(tokens) < 2:
        return {}
    return {"spread": spread(tokens), "effective_rank": effective_rank(tokens)}


def spread(tokens: Float[Tensor, "B H"]) -> float:
    """The mean deviation of the channels of unit vectors, times √H: 0 if all are the same, about
    1 if they point everywhere."""
    unit = F.normalize(tokens, dim=1)
    return float(unit.std(dim=0, correction=0).mean() * math.sqrt(tokens.shape[1]))


def effective_rank(tokens: Float[Tensor, "B H"]) -> float:
    """How many directions the unit vectors vary in: the exponential of the entropy of the
    covariance's eigenvalues."""
    unit = F.normalize(tokens, dim=1)
    centred = (unit - unit.mean(dim=0)).double().cpu()
    small = centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T
    power = torch.linalg.eigvalsh(small).clamp_min(0)
    if float(power.sum()) <= 1e-12 * len(tokens):
        return 1.0
    share = power / power.sum()
    return float(torch.special.entr(share).sum().exp())


class Monitor:
    """Writes a line for each epoch, and says once when the model has collapsed."""

    def __init__(self, folder: Path, *, epochs: int, done: int) -> None:
        self.path, self.epochs, self.warned = folder / "metrics.jsonl", epochs, False
        self.said: set[str] = set()
        write_atomic(self.path, b"".join(self._lines(done)))

    def _lines(self, done: int) -> list[bytes]:
        """The lines of the epochs before, as far as they can be read."""
        there = done > 0 and self.path.is_file()
        lines = self.path.read_bytes().splitlines(keepends=True)[:done] if there else []
        kept = [line for line in lines if _is_line(line)]
        if len(kept) < done:
            say(f"{self.path} lacks {done - len(kept)} of the {done} epochs before")
        return kept

    def write(self, line: Mapping[str, int | float]) -> None:
        """Note an epoch; a disk that does not take it does not stop the training."""
        with self.tolerated("this line"):
            append_whole(self.path, msgspec.json.encode(line) + b"\n")
        self._judge(line)

    @contextmanager
    def tolerated(self, what: str) -> Iterator[None]:
        """Say once that something cannot be written, and let the training go on."""
        try:
            yield
        except OutputError as error:
            if what not in self.said:
                say(f"{error.problem}; training goes on without {what}")
            self.said.add(what)

    def _judge(self, line: Mapping[str, int | float]) -> None:
        settled = line["epoch"] > SETTLING * self.epochs
        if settled and not self.warned and line.get("spread", 1.0) < COLLAPSED:
            self.warned = True
            say(
                f"the model has collapsed: at epoch {line['epoch']} all videos get nearly the same "
                f"set token (spread {line['spread']:.4f}); lower the learning rate, or look at "
                f"whether the features differ at all"
            )


def _is_line(line: bytes) -> bool:
    try:
        msgspec.json.decode(line, type=dict[str, int | float | None])
    except (msgspec.DecodeError, RecursionError):
        return False
    return True
