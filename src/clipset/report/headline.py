"""The headline of a report: a sentence that claims no more than its intervals allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clipset.evaluation.results import ProbeResult
from clipset.report.records import Panel
from clipset.report.wording import (
    format_number,
    format_percent,
    metric_name,
    percent_sign,
    plural,
    sentence_case,
    sentence_name,
)

Verdict = Literal["above", "below", "unclear", "alone"]
PHRASES = {
    "above": "clearly above",
    "below": "clearly below",
    "unclear": "no clear difference from",
    "alone": "",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The sentence at the top of the page, its details, and its verdict."""

    sentence: str
    details: tuple[str, ...]
    verdict: Verdict


def write_headline(panel: Panel) -> Headline:
    """The headline of a panel."""
    result = panel.main_result or panel.strongest_backbone
    if result is None:
        raise ValueError("a panel has at least one result")
    baseline = panel.baseline if result.is_scale else None
    verdict = compare_intervals(result, baseline) if baseline else "alone"
    score = _describe_score(result, metric=metric_name(result.metric))
    sentence = f"{sentence_case(_name(result))} reaches {score}"
    if baseline:
        phrase = _phrase(verdict, is_error=panel.is_error)
        sentence += f", {phrase} {_name(baseline)} with {_describe_score(baseline)}"
    details = (
        "The 95\u202f% intervals overlap." if verdict == "unclear" else "",
        _strongest_sentence(panel, result, baseline),
        _chance_sentence(result),
    )
    return Headline(sentence=f"{sentence}.", details=tuple(filter(None, details)), verdict=verdict)


def compare_intervals(result: ProbeResult, other: ProbeResult) -> Verdict:
    """Unclear if the intervals touch; above means better: of an error, less."""
    if result.interval[0] > other.interval[1]:
        return "below" if result.is_error else "above"
    if result.interval[1] < other.interval[0]:
        return "above" if result.is_error else "below"
    return "unclear"


def describe_panel(panel: Panel) -> str:
    """The caption of a panel: metric, split, videos, seeds, validation."""
    videos = sorted({result.n for result in panel.results})
    seeds = sorted({len(result.seeds) for result in panel.results})
    selected = sorted({result.selected_on for result in panel.results if result.selected_on})
    split = f" on the {panel.split} split" if panel.split else ""
    parts = [
        f"{sentence_case(metric_name(panel.metric))}{split}",
        plural(videos[0], "video") if len(videos) == 1 else "videos as listed",
        plural(seeds[0], "seed") if len(seeds) == 1 else "seeds as listed",
    ]
    num_pretrainings = max(result.num_pretrainings or 1 for result in panel.results)
    if num_pretrainings > 1:
        parts.append(f"SCALE rows over {num_pretrainings} pre-trainings")
    if selected:
        parts.append(f"hyperparameters selected on {' and '.join(selected)}")
    return ", ".join(parts) + "."


def _strongest_sentence(panel: Panel, result: ProbeResult, baseline: ProbeResult | None) -> str:
    """The comparison with the strongest probe on the backbone, if that is not the baseline."""
    strongest = panel.strongest_backbone
    if baseline is None or strongest is None or strongest.value == baseline.value:
        return ""
    if (strongest.value < baseline.value) != panel.is_error:
        return ""
    verdict = compare_intervals(result, strongest)
    verb = "shows" if verdict == "unclear" else "is"
    return (
        f"The strongest probe without clipset is {_name(strongest)} with "
        f"{_describe_score(strongest)}: {_name(result)} {verb} "
        f"{_phrase(verdict, is_error=panel.is_error)} it."
    )


def _chance_sentence(result: ProbeResult) -> str:
    (low, high), level = result.interval, result.chance_level
    if level is None:
        return ""
    if result.is_error:
        sentence = f"Predicting the mean gives {format_number(level)}"
        return f"{sentence}." if high < level else f"{sentence}, not clearly more."
    sentence = f"Chance level is {percent_sign(level)}"
    return f"{sentence}." if low > level else f"{sentence}, not clearly less."


def _name(result: ProbeResult) -> str:
    return sentence_name(*result.key)


def _phrase(verdict: Verdict, *, is_error: bool) -> str:
    """The verdict in words; an error is better or worse, not above or below."""
    phrase = PHRASES[verdict]
    if is_error:
        phrase = phrase.replace("above", "better than").replace("below", "worse than")
    return phrase


def _describe_score(result: ProbeResult, *, metric: str = "") -> str:
    """A score and its interval; the first one in a sentence names the metric and the interval."""
    low, high = result.interval
    label = "95\u202f% interval " if metric else ""
    if result.is_error:
        score = f"{f'a {metric} of ' if metric else ''}{format_number(result.value)}"
        return f"{score} ({label}{format_number(low)}–{format_number(high)})"
    score = f"{percent_sign(result.value)} {metric}".strip()
    return f"{score} ({label}{format_percent(low)}–{format_percent(high)})"
