"""The headline of a report: a sentence that claims no more than its intervals allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clipset.evaluation.results import ProbeResult
from clipset.report.content import Panel
from clipset.report.wording import (
    format_number,
    format_percent,
    metric_name,
    percent_sign,
    plural,
    row_name,
    sentence_case,
    sentence_name,
)

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


def write_headline(panel: Panel) -> Headline:
    """The headline of a panel."""
    main_result = panel.main_result
    phrases = ERROR_PHRASES if panel.is_error else PHRASES
    probe_name = sentence_name(*main_result.key)
    score_text = _describe_score(main_result, metric=metric_name(main_result.metric))
    sentence = f"{sentence_case(probe_name)} reaches {score_text}"
    details = []
    verdict: Verdict = "alone"
    if main_result.is_scale and (baseline_result := panel.baseline):
        verdict = _compare_intervals(main_result, baseline_result)
        baseline_name = sentence_name(*baseline_result.key)
        sentence += f", {phrases[verdict]} {baseline_name} with {_describe_score(baseline_result)}"
        if verdict == "unclear":
            details.append("The 95\u202f% intervals overlap.")
        strongest = panel.strongest_backbone
        if strongest and panel.quality(strongest) > panel.quality(baseline_result):
            other_verdict = _compare_intervals(main_result, strongest)
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
        plural(video_counts[0], "video") if len(video_counts) == 1 else "videos as listed",
        plural(seed_counts[0], "seed") if len(seed_counts) == 1 else "seeds as listed",
    ]
    num_pretrainings = max(result.num_pretrainings or 1 for result in panel.results)
    if num_pretrainings > 1:
        caption_parts.append(f"SCALE rows over {num_pretrainings} pre-trainings")
    if selected_on:
        caption_parts.append(f"hyperparameters selected on {' and '.join(selected_on)}")
    return ", ".join(caption_parts) + "."


def _compare_intervals(result: ProbeResult, other: ProbeResult) -> Verdict:
    """Unclear if the intervals touch; above means better: of an error, less."""
    if result.interval[0] > other.interval[1]:
        return "below" if result.is_error else "above"
    if result.interval[1] < other.interval[0]:
        return "above" if result.is_error else "below"
    return "unclear"


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
