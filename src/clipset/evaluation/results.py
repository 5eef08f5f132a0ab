"""ProbeResult, Comparison, Predictions: what comes out of the probes and goes to disk."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import msgspec
import numpy as np
from jaxtyping import Float, Int
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clipset.checksums import find_damage, seal
from clipset.config import write_atomic
from clipset.errors import ProbeError
from clipset.evaluation.metrics import compare_values

Features = Literal["backbone", "scale"]
ProbeName = Literal["knn", "linear", "mlp", "transformer", "finetune", "ordered", "attentive"]
Row = tuple[Features, ProbeName]
READ_ERRORS = (
    OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError,
    msgspec.ValidationError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """One row of the table, with what is needed to trust it."""

    features: Features
    probe: ProbeName
    metric: str
    value: float
    interval: tuple[float, float]
    n: int
    seeds: tuple[int, ...]
    selected_on: str
    split: str
    chance: float
    rate: float | None
    epochs: int | None
    seconds: float
    per_class: dict[str, float | None]
    confusion: dict[str, Any] | None
    metrics: dict[str, float | None]
    settings: dict[str, Any]
    tried: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Is one row really better than another, on the same test videos?"""

    features: Features
    probe: ProbeName
    against_features: Features
    against_probe: ProbeName
    metric: str
    difference: float
    interval: tuple[float, float]
    p: float
    mcnemar: float | None
    n: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """What each row predicted for each test video with each seed.

    `outputs` holds (S, M, C): probabilities of the classes, or (C = 1) numbers.
    """

    ids: tuple[str, ...]
    classes: tuple[str, ...]
    truth: Int[np.ndarray, " M"] | Float[np.ndarray, " M"]
    seeds: dict[Row, tuple[int, ...]]
    outputs: dict[Row, Float[np.ndarray, "S M C"]]

    def values(self, row: Row) -> Float[np.ndarray, "S M"]:
        """Whether each video was recognised (1 or 0), or its squared error."""
        outputs = self.outputs[row]
        if self.classes:
            right: Float[np.ndarray, "S M"] = (outputs.argmax(axis=2) == self.truth) * 1.0
            return right
        gaps: Float[np.ndarray, "S M"] = outputs[..., 0].astype(np.float64) - self.truth
        return gaps**2


BASELINES: dict[Row, Row] = {
    ("scale", "knn"): ("backbone", "knn"),
    ("scale", "linear"): ("backbone", "linear"),
    ("scale", "attentive"): ("backbone", "attentive"),
    ("scale", "finetune"): ("backbone", "transformer"),
}
RIVAL: Row = ("backbone", "ordered")


def compare(predictions: Predictions, *, seed: int = 0) -> list[Comparison]:
    """Each SCALE row against its baseline, and every row against the clips in order."""
    pairs = list_pairs(list(predictions.outputs))
    return [compare_rows(predictions, row, other, seed=seed) for row, other in pairs]


def list_pairs(rows: list[Row]) -> list[tuple[Row, Row]]:
    """Which rows of a table are compared with which."""
    pairs = [(row, BASELINES[row]) for row in rows if BASELINES.get(row) in rows]
    return pairs + [(row, RIVAL) for row in rows if RIVAL in rows and row != RIVAL]


def compare_rows(predictions: Predictions, row: Row, other: Row, *, seed: int = 0) -> Comparison:
    """One row against another."""
    one, two = predictions.values(row), predictions.values(other)
    found = compare_values(one, two, np.random.default_rng(seed))
    return Comparison(
        features=row[0],
        probe=row[1],
        against_features=other[0],
        against_probe=other[1],
        metric="top1" if predictions.classes else "mse",
        difference=found.value,
        interval=found.interval,
        p=found.p,
        mcnemar=found.mcnemar,
        n=one.shape[1],
    )


def encode_predictions(predictions: Predictions) -> bytes:
    """A safetensors file: `truth`, and one array for each row; names are in its metadata."""
    arrays = {"/".join(row): outputs for row, outputs in predictions.outputs.items()}
    about = {
        "ids": json.dumps(predictions.ids),
        "classes": json.dumps(predictions.classes),
        "seeds": json.dumps({"/".join(row): seeds for row, seeds in predictions.seeds.items()}),
    }
    whole = {
        name: np.ascontiguousarray(each)  # safetensors would write the memory behind a view
        for name, each in ({"truth": predictions.truth} | arrays).items()
    }
    return seal(save(whole, metadata=about))


def write_predictions(predictions: Predictions, path: Path) -> None:
    """Write them to a file of their own."""
    write_atomic(path, encode_predictions(predictions))


def read_predictions(path: Path) -> Predictions:
    """What was written of predictions, every bit of it."""
    try:
        damage = find_damage(path)
        if damage is not None:
            raise ValueError(damage)
        with safe_open(path, framework="numpy") as file:
            about = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        seeds = _listed(about["seeds"], dict[str, tuple[int, ...]])
        predictions = Predictions(
            ids=_listed(about["ids"], tuple[str, ...]),
            classes=_listed(about["classes"], tuple[str, ...]),
            truth=arrays["truth"],
            seeds={_row(name): each for name, each in seeds.items()},
            outputs={_row(name): arrays[name] for name in seeds},
        )
        _check_shapes(predictions)
    except READ_ERRORS as error:
        raise ProbeError(f"{path} holds no predictions ({error}); run `clipset probe`") from None
    return predictions


def _listed(text: str, kind: Any) -> Any:
    """A list or object in the metadata; names may hold what is no text, so `json` reads it."""
    return msgspec.convert(json.loads(text), type=kind)


def _check_shapes(predictions: Predictions) -> None:
    """Refuse arrays that do not fit each other, or are not finite."""
    count = len(predictions.ids)
    arrays: dict[str, tuple[np.ndarray, tuple[int, ...]]] = {"truth": (predictions.truth, (count,))}
    for row, outputs in predictions.outputs.items():
        width = len(predictions.classes) or max((1, *outputs.shape[2:3]))
        arrays["/".join(row)] = (outputs, (len(predictions.seeds[row]), count, width))
    for name, (array, shape) in arrays.items():
        if array.shape != shape:
            raise ValueError(f"{name} has the shape {array.shape}, not {shape}")
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise ValueError(f"{name} holds values that are not finite numbers")


def _row(name: str) -> Row:
    features, probe = name.split("/")
    return features, probe  # type: ignore[return-value]
