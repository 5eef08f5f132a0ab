"""Metrics of each epoch in metrics.jsonl, and a warning when the model has collapsed."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import msgspec
import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor

from clipset.errors import OutputError
from clipset.files import append_whole, write_atomic
from clipset.model.scale import SetModel
from clipset.progress import log
from clipset.sets.sampling import PixelPair, SetPair
from clipset.training.data import tensors_of

COLLAPSED_SPREAD = 0.02  # below it, the set tokens of all videos are nearly equal
NUM_COMPARED = 128  # videos whose set tokens are compared after each epoch
SETTLING_FRACTION = 0.2  # fraction of the epochs after which the spread is checked

Metrics = dict[str, int | float]


@torch.no_grad()
def token_statistics(model: SetModel, pair: SetPair | PixelPair, device: torch.device) -> Metrics:
    """Spread and effective rank of the set tokens of a batch's first sets, nothing masked."""
    tensors = tensors_of(pair, device).items()
    inputs = {name: value[0, :NUM_COMPARED] for name, value in tensors if name != "masked"}
    training = model.training
    tokens = model.eval().encode(**inputs).set_token.float()
    model.train(training)
    if len(tokens) < 2:
        return {}
    return {"spread": spread(tokens), "effective_rank": effective_rank(tokens)}


def spread(tokens: Float[Tensor, "B H"]) -> float:
    """Mean standard deviation of the channels of unit vectors, times √H.

    0 if all vectors are equal, about 1 if they point in all directions.
    """
    unit = F.normalize(tokens, dim=1)
    return float(unit.std(dim=0, correction=0).mean() * math.sqrt(tokens.shape[1]))


def effective_rank(tokens: Float[Tensor, "B H"]) -> float:
    """Number of directions in which unit vectors vary: exp of the entropy of the eigenvalues of
    their covariance."""
    unit = F.normalize(tokens, dim=1)
    centred = (unit - unit.mean(dim=0)).double().cpu()
    gram = centred.T @ centred if len(centred) > centred.shape[1] else centred @ centred.T
    eigenvalues = torch.linalg.eigvalsh(gram).clamp_min(0)
    if float(eigenvalues.sum()) <= 1e-12 * len(tokens):
        return 1.0
    probabilities = eigenvalues / eigenvalues.sum()
    return float(torch.special.entr(probabilities).sum().exp())


class Monitor:
    """Writes the metrics of each epoch and warns once when the model has collapsed."""

    def __init__(self, folder: Path, *, num_epochs: int, done: int) -> None:
        self.path, self.num_epochs = folder / "metrics.jsonl", num_epochs
        self.warned: set[str] = set()
        write_atomic(self.path, b"".join(self._previous_lines(done)))

    def _previous_lines(self, done: int) -> list[bytes]:
        """The readable lines of the epochs before a resume."""
        readable = []
        if done > 0 and self.path.is_file():
            for line in self.path.read_bytes().splitlines()[:done]:
                with suppress(msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                    msgspec.json.decode(line, type=dict[str, int | float | None])
                    readable.append(line + b"\n")  # also if it was cut there
        if len(readable) < done:
            log(f"{self.path} lacks {done - len(readable)} of the {done} epochs before")
        return readable

    def write(self, metrics: Metrics) -> None:
        """Append the metrics of an epoch (a full disk does not stop it); warn of a collapse."""
        with self.tolerate("this line"):
            append_whole(self.path, msgspec.json.encode(metrics) + b"\n")
        settled = metrics["epoch"] > SETTLING_FRACTION * self.num_epochs
        if settled and metrics.get("spread", 1.0) < COLLAPSED_SPREAD:
            self._warn(
                "collapse",
                f"the model has collapsed: at epoch {metrics['epoch']} all videos have nearly the "
                f"same set token (spread {metrics['spread']:.4f}); lower the learning rate, or "
                f"check whether the features differ at all",
            )

    @contextmanager
    def tolerate(self, lost: str) -> Iterator[None]:
        """Report once that something cannot be written, and continue training."""
        try:
            yield
        except OutputError as error:
            self._warn(lost, f"{error.problem}; training continues without {lost}")

    def _warn(self, topic: str, message: str) -> None:
        if topic not in self.warned:
            log(message)
        self.warned.add(topic)
