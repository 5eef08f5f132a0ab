"""Numbers and names as text: formats, names of rows, metrics and curves."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from markupsafe import Markup

from clipset.evaluation.results import ERROR_METRICS
from clipset.text import THIN_SPACE, format_count, visible

Number = int | float  # the type checker of the tests does not take an int for a float
ROW_NAMES = {  # probes in the order of the paper's tables, then vectors
    ("backbone", "knn"): "k-NN",
    ("scale", "knn"): "SCALE k-NN",
    ("backbone", "linear"): "Linear",
    ("scale", "linear"): "SCALE linear",
    ("backbone", "mlp"): "MLP",
    ("backbone", "transformer"): "Transformer",
    ("scale", "finetune"): "SCALE fine-tuned",
    ("backbone", "course_knn"): "Time course k-NN",
    ("scale", "course_knn"): "SCALE time course k-NN",
    ("backbone", "ordered"): "Clips in order",
    ("scale", "ordered"): "SCALE clips in order",
    ("backbone", "attentive"): "Attentive",
    ("scale", "attentive"): "SCALE attentive",
    ("backbone", "mean"): "Mean feature",
    ("scale", "mean"): "SCALE mean feature",
}
SENTENCE_NAMES = {
    ("backbone", "knn"): "k-NN on the backbone",
    ("scale", "knn"): "k-NN on clipset's features",
    ("backbone", "mlp"): "the MLP on the backbone",
    ("backbone", "transformer"): "the transformer trained from scratch on the backbone",
    ("scale", "finetune"): "fine-tuned clipset",
    ("backbone", "course_knn"): "k-NN on the time course of the backbone's features",
    ("scale", "course_knn"): "k-NN on the time course of clipset's features",
    ("backbone", "ordered"): "the linear classifier on the backbone's clips in order",
    ("scale", "ordered"): "the linear classifier on clipset's clips in order",
}
METRIC_NAMES = {"top1": "top-1 accuracy", "top5": "top-5 accuracy", "mse": "mean squared error"}
CURVE_NAMES = {
    "loss": "Loss (sum of both)",
    "masked_clip": "Masked clip loss",
    "set_contrast": "Set contrastive loss",
    "validation_loss": "Loss of held-out videos",
}


def row_name(features: str, probe: str) -> str:
    """The name of a probe, or of a kind of vector, in a table; as in the paper."""
    default_name = f"SCALE {plain(probe)}" if features == "scale" else sentence_case(plain(probe))
    return ROW_NAMES.get((features, probe), default_name)


def row_order(key: tuple[str, str]) -> int:
    """The index of a probe in a table; those that the paper does not have come last."""
    row_keys = list(ROW_NAMES)
    return row_keys.index(key) if key in row_keys else len(row_keys)


def sentence_name(features: str, probe: str) -> str:
    """The name of a probe inside a sentence."""
    source = "clipset's features" if features == "scale" else "the backbone"
    return SENTENCE_NAMES.get((features, probe), f"the {plain(probe)} probe on {source}")


def metric_name(metric: str) -> str:
    """The name of a metric inside a sentence."""
    return METRIC_NAMES.get(metric, plain(metric))


def plain(name: str) -> str:
    """A name without underscores."""
    return name.replace("_", " ")


def sentence_case(text: str) -> str:
    """The text with a capital first letter; the other letters stay."""
    return text[:1].upper() + text[1:]


def format_score(metric: str, value: Number) -> str:
    """A score in a table: an error as it is, other metrics in percent without the sign."""
    return format_number(value) if metric in ERROR_METRICS else format_percent(value, digits=1)


def format_interval(metric: str, interval: Sequence[Number]) -> str:
    """The interval of a score in a table, in brackets."""
    low, high = (format_score(metric, end) for end in interval)
    return f"({low}–{high})"


def format_signed(metric: str, difference: Number) -> str:
    """A difference of scores with its sign, in points of a hundred unless of an error."""
    if metric in ERROR_METRICS:
        return f"{'−' if difference < 0 else '+'}{format_number(abs(difference))}"
    return f"{100 * difference:+.1f}".replace("-", "−").replace("+0.0", "0.0")


def format_p_value(p: Number | None) -> str:
    """A p-value to three digits."""
    if p is None:
        return "–"
    return "< 0.001" if p < 0.001 else f"{p:.3f}"


def format_percent(fraction: Number, *, digits: int | None = None) -> str:
    """A fraction in percent, without the sign; by default one digit, and none if it is zero."""
    if digits is not None:
        return f"{100 * fraction:.{digits}f}"
    if 0 < fraction < 0.01:
        return f"{100 * fraction:.2g}"
    return f"{100 * fraction:.1f}".removesuffix(".0")


def percent_sign(fraction: Number) -> str:
    """A fraction in percent, with the sign."""
    if not math.isfinite(fraction):
        return "not finite"
    return f"{format_percent(fraction)}{THIN_SPACE}%"


def format_number(value: Number) -> str:
    """A number of any size with three significant digits."""
    if not math.isfinite(value):
        return "not finite"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def format_duration(seconds: Number) -> str:
    """Seconds as 0.4 s, 12 s, 3 min 5 s or 2 h 7 min."""
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min"


def format_hours(value: Number) -> str:
    """Hours of video with two or three significant digits."""
    if value >= 100:
        return format_count(round(value))
    return f"{value:.2f}" if value < 1 else f"{value:.1f}"


def escape_invisible(value: Any) -> Any:
    """The same value with control characters and those that change text direction escaped."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: escape_invisible(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [escape_invisible(inner) for inner in value]
    return value
