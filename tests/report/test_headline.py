"""The sentence at the top claims what the intervals allow, and no more."""

from __future__ import annotations

from typing import Any

from clipset.report import ProbeRecord, read_record
from clipset.report.charts import place_axis, place_probes
from clipset.report.headline import Headline, describe, write_headline
from clipset.report.records import group_records


def record(
    features: str, probe: str, value: float, interval: tuple[float, float] | None, **more: Any
) -> ProbeRecord:
    row = {"features": features, "probe": probe, "metric": "accuracy", "value": value, **more}
    return read_record({**row, "interval": list(interval)} if interval else row)


def headline(*records: ProbeRecord) -> Headline:
    return write_headline(group_records(records)[0])


def test_intervals_apart_are_a_clear_difference() -> None:
    found = headline(
        record("scale", "finetune", 0.875, (0.8, 0.93)),
        record("backbone", "linear", 0.31, (0.22, 0.41)),
    )
    assert found.sentence == (
        "Fine-tuned clipset reaches 87.5\u202f% accuracy (95\u202f% interval 80–93), clearly above "
        "the linear probe on the backbone with 31\u202f% (22–41)."
    )
    assert (found.verdict, found.details) == ("above", ())


def test_intervals_that_overlap_are_no_clear_difference() -> None:
    found = headline(
        record("scale", "finetune", 0.5, (0.4, 0.6)),
        record("backbone", "linear", 0.35, (0.25, 0.45)),
    )
    assert "no clear difference from the linear probe on the backbone" in found.sentence
    assert found.verdict == "unclear"
    assert "Their intervals overlap" in found.details[0]


def test_a_loss_is_said_as_plainly_as_a_win() -> None:
    found = headline(
        record("scale", "finetune", 0.2, (0.1, 0.3)),
        record("backbone", "linear", 0.8, (0.7, 0.9)),
    )
    assert "clearly below the linear probe on the backbone" in found.sentence
    assert found.verdict == "below"


def test_without_intervals_nothing_is_clear() -> None:
    found = headline(
        record("scale", "finetune", 0.9, None), record("backbone", "linear", 0.1, None)
    )
    assert found.verdict == "unclear"
    assert "Without an interval" in found.details[0]


def test_a_stronger_rival_on_the_backbone_is_named() -> None:
    found = headline(
        record("scale", "finetune", 0.8, (0.7, 0.9)),
        record("backbone", "linear", 0.3, (0.2, 0.4)),
        record("backbone", "transformer", 0.75, (0.65, 0.85)),
    )
    assert found.verdict == "above"
    assert found.details == (
        "The strongest probe without clipset is the transformer trained from scratch on the "
        "backbone with 75\u202f% (65–85): fine-tuned clipset shows no clear difference from it.",
    )


def test_clipset_speaks_through_fine_tuning_even_if_another_row_scored_higher() -> None:
    found = headline(
        record("scale", "knn", 0.9, (0.85, 0.95)),
        record("scale", "finetune", 0.6, (0.5, 0.7)),
        record("backbone", "linear", 0.3, (0.2, 0.4)),
    )
    assert found.sentence.startswith("Fine-tuned clipset reaches 60\u202f%")


def test_a_score_at_chance_is_said_to_be_at_chance() -> None:
    found = headline(record("scale", "knn", 0.3, (0.2, 0.4), chance_level=0.25))
    assert found.details == ("Guessing would reach 25\u202f%, which is not clearly less.",)


def test_the_backbone_alone_has_a_headline_too() -> None:
    found = headline(
        record("backbone", "knn", 0.4, (0.3, 0.5)), record("backbone", "linear", 0.6, (0.5, 0.7))
    )
    assert found.sentence.startswith("The linear probe on the backbone reaches 60\u202f% accuracy")
    assert found.verdict == "alone"


def test_the_caption_says_where_choices_were_made() -> None:
    more = {"n": 80, "seeds": [0, 1], "split": "test"}
    chosen = {"knn": "nothing: k is fixed", "linear": "validation"}  # the first goes without saying
    records = [record("scale", p, 0.4, None, selected_on=on, **more) for p, on in chosen.items()]
    (panel,) = group_records(records)
    assert describe(panel) == (
        "Accuracy on the split “test”, 80 videos, 2 seeds, every choice made on “validation”."
    )


def test_of_an_error_less_is_better() -> None:
    def scored(features: str, probe: str, value: float) -> ProbeRecord:
        return read_record({
            "features": features, "probe": probe, "metric": "mse", "value": value,
            "interval": [value - 0.2, value + 0.2], "chance_level": 9.5, "split": "test",
        })  # fmt: skip

    ours, theirs = scored("scale", "linear", 3.0), scored("backbone", "linear", 4.0)
    panel = group_records([theirs, ours, scored("backbone", "mlp", 3.6)])[0]
    found = write_headline(panel)
    assert found.verdict == "above"
    assert "reaches a mean squared error of 3 (95\u202f% interval 2.8–3.2)" in found.sentence
    assert "clearly better than the linear probe on the backbone with 4" in found.sentence
    assert any("the MLP on the backbone with 3.6" in detail for detail in found.details)
    assert "Always saying the mean would reach 9.5." in found.details
    assert [tick.text for tick in place_axis(panel)] == ["0", "2.5", "5", "7.5", "10"]
    assert place_probes(panel)[0].mark.value == 40
