"""ProbeResult, Comparison, LowShotCurve, Predictions: the results of probes and their files."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, TypeVar

import msgspec
import numpy as np
from jaxtyping import Float, Int
from msgspec import Meta
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clipset.checksums import find_damage, seal
from clipset.config import build, read_json
from clipset.errors import ConfigError, ProbeError, RunError
from clipset.files import write_atomic
from clipset.probes.config import ProbeKey

T = TypeVar("T")
ERROR_METRICS = ("mse",)  # lower is better, in the unit of the targets
LARGEST_VALUE = 1e100  # no number in a file is larger, so that none overflows when it is drawn
ROUNDING = 1e-6  # what rounding may add to a fraction
Value = Annotated[float, Meta(ge=-LARGEST_VALUE, le=LARGEST_VALUE)]
Count = Annotated[int, Meta(ge=0, le=2**53)]
PValue = Annotated[float, Meta(ge=0, le=1)]
Fraction = Annotated[float, Meta(ge=-ROUNDING, le=1 + ROUNDING)]
READ_ERRORS = (
    OSError, SafetensorError, KeyError, TypeError, ValueError, AttributeError, RecursionError,
    msgspec.ValidationError,
)  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Confusion:
    """How often each class (row) was predicted as each class (column)."""

    classes: tuple[str, ...]
    counts: tuple[tuple[int | float, ...], ...]

    def __post_init__(self) -> None:
        row_sizes = {len(self.counts), *(len(row) for row in self.counts)}
        if row_sizes != {len(self.classes)}:
            raise ValueError(
                f"a confusion matrix of {len(self.classes)} classes has rows of {sorted(row_sizes)}"
            )
        if not all(0 <= count <= 2**53 for row in self.counts for count in row):
            raise ValueError(f"a confusion matrix counts videos, from 0 to {2**53}")

    def class_accuracy(self) -> dict[str, float | None]:
        """The accuracy of each class; None for a class without videos."""
        return {
            name: row[class_index] / sum(row) if sum(row) else None
            for class_index, (name, row) in enumerate(zip(self.classes, self.counts, strict=True))
        }

    def mean_class_accuracy(self) -> float:
        """The mean over the classes that have videos."""
        class_accuracies = self.class_accuracy().values()
        return float(np.mean([accuracy for accuracy in class_accuracies if accuracy is not None]))


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeResult:
    """The test score of one probe, with what is needed to trust it. A record of results.json."""

    features: str
    probe: str
    metric: str
    value: float
    interval: tuple[float, float]
    n: Count
    """test videos"""
    seeds: tuple[int, ...] = ()
    selected_on: str | None = None
    """the videos that hyper-parameters were selected on"""
    split: str | None = None
    chance_level: float | None = None
    """the score of the largest class, or of the mean target"""
    learning_rate: float | None = None
    epochs: Count | None = None
    seconds: Value = 0.0
    per_class: dict[str, Fraction | None] = field(default_factory=dict)
    confusion: Confusion | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    settings: dict[str, Any] = field(default_factory=dict)
    num_candidates: Count | None = None
    """settings that were compared on validation videos"""
    num_pretrainings: Count | None = None
    """pre-trainings of different seeds that the score is a mean over; None without a model"""
    ssl_split: str | None = None
    """the split that the model was pre-trained on"""
    label_fraction: float | None = None
    task: str | None = None
    """the task of a run with several"""
    task_values: dict[str, float] | None = None
    """the score of each task, if `value` is their mean"""

    def __post_init__(self) -> None:
        low, high = self.interval
        upper_bound = LARGEST_VALUE if self.is_error else 1 + ROUNDING
        if not (-ROUNDING <= low <= high <= upper_bound and -ROUNDING <= self.value <= upper_bound):
            raise ValueError(
                f"the {self.probe} probe on {self.features} features scored {self.value} with the "
                f"interval [{low}, {high}]; scores and intervals lie in [0, 1]"
            )
        if self.chance_level is not None and not -ROUNDING <= self.chance_level <= upper_bound:
            raise ValueError(f"the chance level must lie in [0, 1], got {self.chance_level}")

    @property
    def key(self) -> ProbeKey:
        """Features and probe."""
        return ProbeKey(self.features, self.probe)

    @property
    def is_error(self) -> bool:
        """Whether lower is better."""
        return self.metric in ERROR_METRICS

    @property
    def is_scale(self) -> bool:
        """Whether the features are those of the set encoder, not the backbone's alone."""
        return self.features == "scale"

    def class_accuracy(self) -> dict[str, float | None]:
        """The accuracy of each class, as recorded or from the confusion matrix."""
        if self.per_class:
            return self.per_class
        return self.confusion.class_accuracy() if self.confusion else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The paired difference of two probes on the same test videos. A record of comparisons.json."""

    features: str
    probe: str
    baseline_features: str
    baseline_probe: str
    metric: str
    difference: Value
    interval: tuple[Value, Value]
    p: PValue | None = None
    mcnemar: PValue | None = None
    n: Count | None = None

    def __post_init__(self) -> None:
        if self.interval[0] > self.interval[1]:
            raise ValueError(f"the interval {list(self.interval)} ends before it begins")

    @property
    def key(self) -> ProbeKey:
        """The probe."""
        return ProbeKey(self.features, self.probe)

    @property
    def baseline(self) -> ProbeKey:
        """The probe that it is compared with."""
        return ProbeKey(self.baseline_features, self.baseline_probe)

    @property
    def is_significant(self) -> bool:
        """Whether the interval excludes 0."""
        return self.interval[0] > 0 or self.interval[1] < 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RetrievalResult:
    """How well vectors find training videos with the label of a test video. In retrieval.json."""

    features: str
    vectors: str
    """`mean` over clips or `time_course`"""
    mean_average_precision: Fraction
    interval: tuple[Fraction, Fraction]
    recall: dict[str, Fraction]
    """by k: the fraction of queries with a relevant video among the k nearest"""
    n: Count
    """queries: test videos"""
    num_train: Count
    split: str | None = None
    num_pretrainings: Count | None = None
    """pre-trainings of different seeds that this is a mean over; None without a model"""

    def __post_init__(self) -> None:
        low, high = self.interval
        if low > high:
            raise ValueError(f"the interval {list(self.interval)} ends before it begins")
        if not all(rank.isdecimal() and len(rank) < 7 for rank in self.recall):
            raise ValueError(f"recall is at ranks such as 1 and 10, got {list(self.recall)}")


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShotPoint:
    """The score with a fraction of the training labels."""

    fraction: Annotated[float, Meta(gt=0, le=1)]
    videos: Count
    value: Fraction
    interval: tuple[Fraction, Fraction] | None = None
    selected_on: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LowShotCurve:
    """The scores of one probe with more and more labels on the same test videos."""

    features: str
    probe: str
    metric: str
    split: str | None = None
    n: Count | None = None
    points: tuple[LowShotPoint, ...]

    @property
    def key(self) -> ProbeKey:
        """Features and probe."""
        return ProbeKey(self.features, self.probe)


@dataclass(frozen=True, slots=True, kw_only=True)
class Predictions:
    """The predictions of each probe for each test video with each seed.

    `outputs` holds (S, M, C): class probabilities, or (C = 1) predicted targets. `groups` holds the
    group of each video, or nothing if no video has one.
    """

    ids: tuple[str, ...]
    classes: tuple[str, ...]
    truth: Int[np.ndarray, " M"] | Float[np.ndarray, " M"]
    seeds: dict[ProbeKey, tuple[int, ...]]
    outputs: dict[ProbeKey, Float[np.ndarray, "S M C"]]
    groups: tuple[str | None, ...] = ()

    @property
    def metric(self) -> str:
        """The metric of the scores."""
        return "top1" if self.classes else "mse"

    def values(self, probe_key: ProbeKey) -> Float[np.ndarray, "S M"]:
        """Whether each video was classified correctly (1 or 0), or its squared error."""
        probe_outputs = self.outputs[probe_key]
        if self.classes:
            correct: Float[np.ndarray, "S M"] = (probe_outputs.argmax(axis=2) == self.truth) * 1.0
            return correct
        errors: Float[np.ndarray, "S M"] = probe_outputs[..., 0].astype(np.float64) - self.truth
        return errors**2


def parse_records(content: Any, kind: type[T], where: str) -> list[T]:
    """Checked records of one kind (ProbeResult, Comparison, LowShotCurve) from plain mappings."""
    if not isinstance(content, Sequence) or not all(isinstance(record, dict) for record in content):
        raise ProbeError(f"{where} is not a list of records")
    try:
        return [build(kind, record, where) for record in content]
    except ConfigError as error:
        raise ProbeError(f"a record does not fit: {error}") from None


def read_results(folder: Path) -> list[ProbeResult]:
    """The results of a run."""
    results_path = folder / "results.json"
    if not results_path.is_file():
        raise RunError(f"{folder} has no results.json; run `clipset run` first")
    return read_records(results_path, ProbeResult)


def read_records(path: Path, kind: type[T]) -> list[T]:
    """The records in a file of a run."""
    return parse_records(read_json(path), kind, str(path))


def read_optional(path: Path, kind: type[T]) -> list[T]:
    """The records in a file of a run; none without the file."""
    return read_records(path, kind) if path.is_file() else []


def encode_predictions(predictions: Predictions) -> bytes:
    """A safetensors file: `truth`, and one array for each probe; names are in its metadata."""
    output_arrays = {str(key): outputs for key, outputs in predictions.outputs.items()}
    metadata = {
        "ids": json.dumps(predictions.ids),
        "groups": json.dumps(predictions.groups),
        "classes": json.dumps(predictions.classes),
        "seeds": json.dumps({str(key): seeds for key, seeds in predictions.seeds.items()}),
    }
    contiguous_arrays = {
        name: np.ascontiguousarray(array)  # safetensors would write the memory behind a view
        for name, array in ({"truth": predictions.truth} | output_arrays).items()
    }
    return seal(save(contiguous_arrays, metadata=metadata))


def write_predictions(predictions: Predictions, path: Path) -> None:
    """Write them to a file of their own."""
    write_atomic(path, encode_predictions(predictions))


def read_predictions(path: Path) -> Predictions:
    """The predictions in a file, with checksum and shapes checked."""
    try:
        damage = find_damage(path)
        if damage is not None:
            raise ValueError(damage)
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        seeds_by_name = _parse_metadata(metadata["seeds"], dict[str, tuple[int, ...]])
        probe_keys = {name: ProbeKey(*name.split("/")) for name in seeds_by_name}
        predictions = Predictions(
            ids=_parse_metadata(metadata["ids"], tuple[str, ...]),
            classes=_parse_metadata(metadata["classes"], tuple[str, ...]),
            truth=arrays["truth"],
            seeds={probe_keys[name]: probe_seeds for name, probe_seeds in seeds_by_name.items()},
            outputs={probe_keys[name]: arrays[name] for name in seeds_by_name},
            groups=_parse_metadata(metadata["groups"], tuple[str | None, ...]),
        )
        _check_arrays(predictions)
    except READ_ERRORS as error:
        raise ProbeError(f"{path} holds no predictions ({error}); run `clipset evaluate`") from None
    return predictions


def _parse_metadata(text: str, kind: Any) -> Any:
    """A list or object in the metadata; ids may be invalid Unicode, which only `json` reads."""
    return msgspec.convert(json.loads(text), type=kind)


def _check_arrays(predictions: Predictions) -> None:
    """Refuse arrays whose shapes do not agree, or that are not finite."""
    count = len(predictions.ids)
    if len(predictions.groups) not in (0, count):
        raise ValueError(f"{count} videos have {len(predictions.groups)} groups")
    shapes: dict[str, tuple[np.ndarray, tuple[int, ...]]] = {"truth": (predictions.truth, (count,))}
    for probe_key, outputs in predictions.outputs.items():
        num_outputs = len(predictions.classes) or max((1, *outputs.shape[2:3]))
        shapes[str(probe_key)] = (outputs, (len(predictions.seeds[probe_key]), count, num_outputs))
    for name, (array, expected_shape) in shapes.items():
        if array.shape != expected_shape:
            raise ValueError(f"{name} has the shape {array.shape}, not {expected_shape}")
        if array.dtype.kind not in "iuf" or not np.isfinite(array).all():
            raise ValueError(f"{name} holds values that are not finite numbers")
