"""What a run tells about itself: metrics for each epoch, whether it collapsed, TensorBoard."""

from __future__ import annotations

import math
import struct
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from functools import cache
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

    def __init__(self, folder: Path, *, epochs: int, done: int, tensorboard: bool) -> None:
        self.path, self.epochs, self.warned = folder / "metrics.jsonl", epochs, False
        self.said: set[str] = set()
        kept = self._lines(done)
        write_atomic(self.path, b"".join(kept))
        self.events = EventFile(folder / "tensorboard") if tensorboard else None
        for line in kept:
            if self.events:
                self.events.write(msgspec.json.decode(line))

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
        with self.tolerated("these points"):
            if self.events:
                self.events.write(line)
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


class EventFile:
    """Scalars in the format that TensorBoard reads (TFRecord of Event messages)."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "events.out.tfevents.0.clipset"
        write_atomic(self.path, _record(_event(time.time(), 0, _text(3, b"brain.Event:2"))))

    def write(self, line: Mapping[str, int | float]) -> None:
        """One point of each curve."""
        values = b"".join(
            _text(1, _text(1, name.encode()) + _key(2, 5) + struct.pack("<f", value))
            for name, value in line.items()
            if name != "epoch" and value is not None  # not finite, when read again
        )
        append_whole(self.path, _record(_event(time.time(), int(line["epoch"]), _text(5, values))))


def _event(moment: float, step: int, content: bytes) -> bytes:
    return _key(1, 1) + struct.pack("<d", moment) + _key(2, 0) + _varint(step) + content


def _text(number: int, content: bytes) -> bytes:
    return _key(number, 2) + _varint(len(content)) + content


def _key(number: int, kind: int) -> bytes:
    return bytes([number << 3 | kind])


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _record(content: bytes) -> bytes:
    length = struct.pack("<Q", len(content))
    return length + _checksum(length) + content + _checksum(content)


def _checksum(content: bytes) -> bytes:
    """The masked CRC-32C of the TFRecord format."""
    crc = 0xFFFFFFFF
    for byte in content:
        crc = _table()[(crc ^ byte) & 0xFF] ^ crc >> 8
    crc ^= 0xFFFFFFFF
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)


@cache
def _table() -> tuple[int, ...]:
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    return tuple(table)
