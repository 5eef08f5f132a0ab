"""Numbers and names as a reader wants to see them."""

from __future__ import annotations

import math
from typing import Annotated, Any

from markupsafe import Markup
from msgspec import Meta

from clipset.text import visible

Number = int | float  # a runtime type check does not take an int for a float
LARGEST = 1e100  # no number on the page is larger, so that none overflows when it is drawn
Real = Annotated[float, Meta(ge=-LARGEST, le=LARGEST)]
Whole = Annotated[int, Meta(ge=0, le=2**53)]
Probability = Annotated[float, Meta(ge=0, le=1)]
THIN_SPACE = "\u202f"
ROW_NAMES = {  # in the order of the paper's tables
    ("backbone", "knn"): "k-NN",
    ("scale", "knn"): "SCALE k-NN",
    ("backbone", "linear"): "Linear",
    ("scale", "linear"): "SCALE linear",
    ("backbone", "mlp"): "MLP",
    ("backbone", "transformer"): "Transformer",
    ("scale", "finetune"): "SCALE fine-tuned",
    ("backbone", "ordered"): "Clips in order",
    ("backbone", "attentive"): "Attentive",
    ("scale", "attentive"): "SCALE attentive",
}
SPOKEN_NAMES = {
    ("backbone", "knn"): "k-NN on the backbone",
    ("scale", "knn"): "k-NN on clipset's features",
    ("backbone", "linear"): "the linear probe on the backbone",
    ("scale", "linear"): "the linear probe on clipset's features",
    ("backbone", "mlp"): "the MLP on the backbone",
    ("backbone", "transformer"): "the transformer trained from scratch on the backbone",
    ("scale", "finetune"): "fine-tuned clipset",
    ("backbone", "ordered"): "the linear classifier on the backbone's clips in order",
}
METRIC_NAMES = {
    "accuracy": "accuracy",
    "top1": "top-1 accuracy",
    "top5": "top-5 accuracy",
    "mse": "mean squared error",
}
ERRORS = ("mse",)  # metrics of which less is better, on a scale of their own
CURVE_NAMES = {
    "loss": "Loss (sum of both)",
    "masked_clip": "Masked clip loss",
    "set_contrast": "Set contrastive loss",
    "masked_clip_accuracy": "Masked clip accuracy",
    "set_accuracy": "Set accuracy",
    "learning_rate": "Learning rate",
}


def row_name(features: str, probe: str) -> str:
    """The name of a row in the table of probes, as in the paper."""
    other = f"SCALE {plain(probe)}" if features == "scale" else sentence_case(plain(probe))
    return ROW_NAMES.get((features, probe), other)


def row_order(features: str, probe: str) -> int:
    """The place of a row in the table; rows that the paper does not have come last."""
    keys = list(ROW_NAMES)
    key = (features, probe)
    return keys.index(key) if key in keys else len(keys)


def spoken_name(features: str, probe: str) -> str:
    """The name of a probe inside a sentence."""
    where = "clipset's features" if features == "scale" else "the backbone"
    return SPOKEN_NAMES.get((features, probe), f"the {plain(probe)} probe on {where}")


def metric_name(metric: str) -> str:
    """The name of a metric inside a sentence."""
    return METRIC_NAMES.get(metric, plain(metric))


def score_text(metric: str, value: Number) -> str:
    """A score inside a sentence."""
    return figure(value) if metric in ERRORS else percent_sign(value)


def curve_name(metric: str) -> str:
    """The title of a curve."""
    return CURVE_NAMES.get(metric, sentence_case(plain(metric)))


def plain(name: str) -> str:
    """A name without underscores."""
    return name.replace("_", " ")


def sentence_case(text: str) -> str:
    """The text with a capital first letter; the other letters stay."""
    return text[:1].upper() + text[1:]


def percent(fraction: Number, *, digits: int | None = None) -> str:
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
    return f"{percent(fraction)}{THIN_SPACE}%"


def duration(seconds: Number) -> str:
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


def count(number: int) -> str:
    """A whole number with its thousands apart."""
    return f"{number:,}".replace(",", THIN_SPACE)


def plural(number: int, one: str, many: str | None = None) -> str:
    """`1 video`, `3 videos`."""
    return f"{count(number)} {one if number == 1 else many or one + 's'}"


def hours(value: Number) -> str:
    """Hours of video, with as many digits as mean something."""
    return f"{value:.2f}" if value < 1 else f"{value:.1f}" if value < 100 else count(round(value))


def figure(value: Number) -> str:
    """A number of any size with three digits that count."""
    if not math.isfinite(value):
        return "not finite"
    if value != 0 and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2g}".replace("e-0", "e-").replace("e+0", "e")
    return f"{value:.3g}" if abs(value) < 1000 else f"{value:.0f}"


def show_hidden(value: Any) -> Any:
    """The same value with control characters and those that turn the direction of text escaped."""
    if isinstance(value, Markup):
        return value
    if isinstance(value, str):
        return visible(value)
    if isinstance(value, dict):
        return {name: show_hidden(inner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [show_hidden(inner) for inner in value]
    return value
