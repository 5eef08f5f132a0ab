"""The headline of a report: a sentence that claims no more than its intervals allow."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from clipset.evaluation.results import ERROR_METRICS, Comparison, ProbeResult
from clipset.report.content import Panel
from clipset.report.wording import (
    format_number,
    format_percent,
    format_signed,
    metric_name,
    percent_sign,
    row_name,
    sentence_case,
    sentence_name,
)
from clipset.text import counted

Verdict = Literal["above", "below", "unclear", "alone"]
UNCLEAR = "no clear difference from"
PHRASES = {"above": "clearly above", "below": "clearly below", "unclear": UNCLEAR}
ERROR_PHRASES = {"above": "clearly better than", "below": "clearly worse than", "unclear": UNCLEAR}


@dataclass(frozen=True, slots=True, kw_only=True)
class Headline:
    """The sentence at the top of the page, its details, and its verdict."""

    sentence: str
    details: tuple[str, ...]
    verdict: Verdict


def write_headline(panel: Panel, comparisons: Sequence[Comparison] = ()) -> Headline:
    """The headline of a panel; the paired comparisons of its results decide what is clear."""
    main_result = panel.main_result
    phrases = ERROR_PHRASES if panel.is_error else PHRASES
    probe_name = sentence_name(*main_result.key)
    score_text = _describe_score(main_result, metric=metric_name(main_result.metric))
    sentence = f"{sentence_case(probe_name)} reaches {score_text}"
    details = []
    verdict: Verdict = "alone"
    if main_result.is_scale and (baseline_result := panel.baseline):
        comparison = _find_comparison(main_result, baseline_result, comparisons)
        verdict = _verdict(main_result, baseline_result, comparison)
        baseline_name = sentence_name(*baseline_result.key)
        sentence += f", {phrases[verdict]} {baseline_name} with {_describe_score(baseline_result)}"
        if comparison is not None:
            details.append(_describe_comparison(comparison))
        elif verdict == "unclear":
            details.append("The 95\u202f% intervals overlap.")
        strongest = panel.strongest_backbone
        if strongest and panel.quality(strongest) > panel.quality(baseline_result):
            other_comparison = _find_comparison(main_result, strongest, comparisons)
            other_verdict = _verdict(main_result, strongest, other_comparison)
            verb = "shows" if other_verdict == "unclear" else "is"
            details.append(
                f"The strongest probe without clipset is {sentence_name(*strongest.key)} with "
                f"{_describe_score(strongest)}: {probe_name} {verb} {phrases[other_verdict]} it."
            )
    if frozen_text := _describe_frozen_rows(panel):
        details.append(frozen_text)
    chance_level = main_result.chance_level
    if chance_level is not None and main_result.is_error:
        limit_text = "" if main_result.interval[1] < chance_level else ", not clearly more"
        details.append(f"Predicting the mean gives {format_number(chance_level)}{limit_text}.")
    elif chance_level is not None:
        limit_text = "" if main_result.interval[0] > chance_level else ", not clearly less"
        details.append(f"Chance level is {percent_sign(chance_level)}{limit_text}.")
    return Headline(sentence=f"{sentence}.", details=tuple(details), verdict=verdict)


def _describe_frozen_rows(panel: Panel) -> str:
    """Both scores of the pairs of the paper that are not fine-tuned, whatever they show."""
    pair_texts = []
    for probe in ("knn", "linear"):
        pair = panel.find("scale", probe), panel.find("backbone", probe)
        if pair[0] is not None and pair[1] is not None and pair[0] is not panel.main_result:
            scale_text, backbone_text = (
                f"{row_name(*result.key)} {_describe_value(result)}" for result in pair if result
            )
            pair_texts.append(f"{scale_text}, {backbone_text}")
    return f"Without fine-tuning: {'; '.join(pair_texts)}." if pair_texts else ""


def describe_panel(panel: Panel) -> str:
    """The caption of a panel: metric, split, videos, seeds, validation."""
    video_counts = sorted({result.n for result in panel.results})
    seed_counts = sorted({len(result.seeds) for result in panel.results})
    selected_on = sorted({result.selected_on for result in panel.results if result.selected_on})
    split_text = f" on the {panel.split} split" if panel.split else ""
    caption_parts = [
        f"{sentence_case(metric_name(panel.metric))}{split_text}",
        counted(video_counts[0], "video") if len(video_counts) == 1 else "videos as listed",
        counted(seed_counts[0], "seed") if len(seed_counts) == 1 else "seeds as listed",
    ]
    num_pretrainings = max(result.num_pretrainings or 1 for result in panel.results)
    if num_pretrainings > 1:
        caption_parts.append(f"SCALE rows over {num_pretrainings} pre-trainings")
    if selected_on:
        caption_parts.append(f"hyperparameters selected on {' and '.join(selected_on)}")
    return ", ".join(caption_parts) + "."


def _find_comparison(
    result: ProbeResult, other: ProbeResult, comparisons: Sequence[Comparison]
) -> Comparison | None:
    """The paired comparison of two results on the same videos, if there is one."""
    keys = (result.key, other.key, result.metric)
    return next((c for c in comparisons if (c.key, c.baseline, c.metric) == keys), None)


def _verdict(result: ProbeResult, other: ProbeResult, comparison: Comparison | None) -> Verdict:
    """Above means better: of an error, less.

    Unclear if the interval of the paired difference includes 0; without one, if the intervals of
    both scores touch.
    """
    if comparison is not None:
        low, high = comparison.interval
    else:
        low = result.interval[0] - other.interval[1]
        high = result.interval[1] - other.interval[0]
    if low > 0:
        return "below" if result.is_error else "above"
    if high < 0:
        return "above" if result.is_error else "below"
    return "unclear"


def _describe_comparison(comparison: Comparison) -> str:
    metric = comparison.metric
    low, high = (format_signed(metric, end) for end in comparison.interval)
    unit = "" if metric in ERROR_METRICS else " points"
    difference = f"{format_signed(metric, comparison.difference)}{unit}"
    return f"The difference on the same videos is {difference} ({low} to {high})."


def _describe_value(result: ProbeResult) -> str:
    return format_number(result.value) if result.is_error else percent_sign(result.value)


def _describe_score(result: ProbeResult, *, metric: str = "") -> str:
    """A score and its interval; the first one in a sentence names the metric and the interval."""
    low, high = result.interval
    interval_label = "95\u202f% interval " if metric else ""
    if result.is_error:
        score_text = f"{f'a {metric} of ' if metric else ''}{_describe_value(result)}"
        return f"{score_text} ({interval_label}{format_number(low)}–{format_number(high)})"
    score_text = f"{_describe_value(result)} {metric}".strip()
    return f"{score_text} ({interval_label}{format_percent(low)}–{format_percent(high)})"
