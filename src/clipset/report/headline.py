"""The result of a run in a sentence that claims no more than its intervals allow."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from clipset.report.records import Panel, ProbeRecord
from clipset.report.wording import (
    figure,
    metric_name,
    percent,
    percent_sign,
    plural,
    score_text,
    sentence_case,
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
    """The sentence at the top of the page, what follows from it, and how sure it is."""

    sentence: str
    details: tuple[str, ...]
    verdict: Verdict


def write_headline(panel: Panel) -> Headline:
    """The headline of the first panel of a report."""
    speaker = panel.flagship or panel.strongest_backbone
    if speaker is None:
        raise ValueError("a panel has at least one record")
    baseline = panel.baseline if speaker.is_scale else None
    verdict = compare(speaker, baseline) if baseline else "alone"
    score = _reading(speaker, metric=metric_name(speaker.metric))
    sentence = f"{sentence_case(speaker.spoken)} reaches {score}"
    if baseline:
        sentence += f", {_phrase(speaker, verdict)} {baseline.spoken} with {_reading(baseline)}"
    return Headline(
        sentence=sentence + ".",
        details=tuple(filter(None, _details(panel, speaker, baseline, verdict))),
        verdict=verdict,
    )


def compare(record: ProbeRecord, other: ProbeRecord) -> Verdict:
    """Where a record stands; unclear when the intervals touch or one is missing.

    Above means better: of an error, less.
    """
    if record.interval is None or other.interval is None:
        return "unclear"
    if record.interval[0] > other.interval[1]:
        return "below" if record.is_error else "above"
    if record.interval[1] < other.interval[0]:
        return "above" if record.is_error else "below"
    return "unclear"


def describe(panel: Panel) -> str:
    """What the numbers of a panel are: metric, split, videos, seeds, where choices were made."""
    numbers = sorted({record.n for record in panel.records if record.n is not None})
    seeds = sorted({record.seed_count for record in panel.records if record.seed_count})
    said = {record.selected_on for record in panel.records if record.selected_on}
    selected = sorted(each for each in said if not each.startswith("nothing")) or sorted(said)
    parts = [sentence_case(metric_name(panel.metric))]
    if panel.split:
        parts[0] += f" on the split “{panel.split}”"
    if numbers:
        parts.append(plural(numbers[0], "video") if len(numbers) == 1 else "videos as listed")
    if seeds:
        parts.append(plural(seeds[0], "seed") if len(seeds) == 1 else "seeds as listed")
    if selected:
        parts.append(f"every choice made on “{'”, “'.join(selected)}”")
    return ", ".join(parts) + "."


def _details(
    panel: Panel, speaker: ProbeRecord, baseline: ProbeRecord | None, verdict: Verdict
) -> tuple[str, ...]:
    return (
        _overlap_sentence(speaker, baseline, verdict),
        _rival_sentence(panel, speaker, baseline),
        _chance_sentence(speaker),
    )


def _overlap_sentence(speaker: ProbeRecord, baseline: ProbeRecord | None, verdict: Verdict) -> str:
    if baseline is None or verdict != "unclear":
        return ""
    if speaker.interval is None or baseline.interval is None:
        return "Without an interval for both, nobody can say whether the difference is real."
    return "Their intervals overlap: more videos would be needed to tell them apart."


def _rival_sentence(panel: Panel, speaker: ProbeRecord, baseline: ProbeRecord | None) -> str:
    rival = panel.strongest_backbone
    if baseline is None or rival is None or rival.value == baseline.value:
        return ""
    if (rival.value < baseline.value) != panel.is_error:
        return ""
    phrase = _phrase(speaker, compare(speaker, rival))
    return (
        f"The strongest probe without clipset is {rival.spoken} with {_reading(rival)}: "
        f"{speaker.spoken} is {phrase} it."
    ).replace("is no clear difference from it", "shows no clear difference from it")


def _chance_sentence(speaker: ProbeRecord) -> str:
    if speaker.chance_level is None:
        return ""
    low, high = speaker.interval or (speaker.value, speaker.value)
    if speaker.is_error:
        guess = f"Always saying the mean would reach {figure(speaker.chance_level)}"
        return (
            f"{guess}." if high < speaker.chance_level else f"{guess}, which is not clearly more."
        )
    guess = f"Guessing would reach {percent_sign(speaker.chance_level)}"
    return f"{guess}." if low > speaker.chance_level else f"{guess}, which is not clearly less."


def _phrase(speaker: ProbeRecord, verdict: Verdict) -> str:
    """The verdict in words; an error is called better or worse, not above or below."""
    phrase = PHRASES[verdict]
    if speaker.is_error:
        phrase = phrase.replace("above", "better than").replace("below", "worse than")
    return phrase


def _reading(record: ProbeRecord, *, metric: str = "") -> str:
    """A score and its interval; the first one in a sentence names the metric and the interval."""
    value, write = score_text(record.metric, record.value), figure if record.is_error else percent
    score = (
        f"a {metric} of {value}" if record.is_error and metric else f"{value} {metric}"
    ).strip()
    if record.interval is None:
        return score
    low, high = record.interval
    name = "95\u202f% interval " if metric else ""
    return f"{score} ({name}{write(low)}–{write(high)})"
