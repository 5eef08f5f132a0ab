"""The sentence at the top claims what the intervals allow, and no more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from tests.report.conftest import make_result

from clipset.evaluation.results import Comparison, ProbeResult
from clipset.report.charts import panel_axis
from clipset.report.content import group_results
from clipset.report.headline import Headline, describe_panel, write_headline


def scored(
    features: str, probe: str, value: float, interval: tuple[float, float], **more: Any
) -> ProbeResult:
    return make_result(features, probe, value=value, interval=interval, **more)


def headline(*results: ProbeResult, comparisons: Sequence[Comparison] = ()) -> Headline:
    return write_headline(group_results(results)[0], comparisons)


def paired(difference: float, interval: tuple[float, float], baseline: str) -> Comparison:
    return Comparison(
        features="scale",
        probe="finetune",
        baseline_features="backbone",
        baseline_probe=baseline,
        metric="accuracy",
        difference=difference,
        interval=interval,
    )


def test_intervals_apart_are_a_clear_difference() -> None:
    found = headline(
        scored("scale", "finetune", 0.875, (0.8, 0.93)),
        scored("backbone", "linear", 0.31, (0.22, 0.41)),
    )
    assert found.sentence == (
        "Fine-tuned clipset reaches 87.5\u202f% accuracy (95\u202f% interval 80–93), clearly above "
        "the linear probe on the backbone with 31\u202f% (22–41)."
    )
    assert (found.verdict, found.details) == ("above", ("Chance level is 10\u202f%.",))


def test_intervals_that_overlap_are_no_clear_difference() -> None:
    found = headline(
        scored("scale", "finetune", 0.5, (0.4, 0.6)),
        scored("backbone", "linear", 0.35, (0.25, 0.45)),
    )
    assert "no clear difference from the linear probe on the backbone" in found.sentence
    assert found.verdict == "unclear"
    assert "intervals overlap" in found.details[0]


def test_a_paired_difference_decides_where_the_intervals_of_two_scores_overlap() -> None:
    found = headline(
        scored("scale", "finetune", 0.5, (0.4, 0.6)),
        scored("backbone", "transformer", 0.45, (0.35, 0.55)),
        scored("backbone", "ordered", 0.48, (0.38, 0.58)),
        comparisons=[
            paired(0.05, (0.01, 0.09), "transformer"), paired(0.02, (-0.02, 0.06), "ordered")
        ],
    )  # fmt: skip
    assert "clearly above the transformer trained from scratch" in found.sentence
    assert found.verdict == "above"
    assert found.details[0] == "The difference on the same videos is +5.0 points (+1.0 to +9.0)."
    assert "shows no clear difference from it" in found.details[1]


def test_a_paired_difference_of_errors_is_better_below_zero() -> None:
    found = headline(
        scored("scale", "finetune", 3.0, (2.0, 4.0), metric="mse"),
        scored("backbone", "transformer", 3.5, (2.5, 4.5), metric="mse"),
        comparisons=[replace(paired(-0.5, (-0.9, -0.1), "transformer"), metric="mse")],
    )
    assert found.verdict == "above"
    assert found.details[0] == "The difference on the same videos is −0.5 (−0.9 to −0.1)."


def test_a_loss_is_said_as_plainly_as_a_win() -> None:
    found = headline(
        scored("scale", "finetune", 0.2, (0.1, 0.3)),
        scored("backbone", "linear", 0.8, (0.7, 0.9)),
    )
    assert "clearly below the linear probe on the backbone" in found.sentence
    assert found.verdict == "below"


def test_a_stronger_rival_on_the_backbone_is_named() -> None:
    found = headline(
        scored("scale", "finetune", 0.8, (0.7, 0.9)),
        scored("backbone", "linear", 0.3, (0.2, 0.4)),
        scored("backbone", "ordered", 0.75, (0.65, 0.85)),
    )
    assert found.verdict == "above"
    assert found.details[0] == (
        "The strongest probe without clipset is the linear classifier on the backbone's clips in "
        "order with 75\u202f% (65–85): fine-tuned clipset shows no clear difference from it."
    )


def test_fine_tuning_is_compared_with_the_transformer_from_a_random_start() -> None:
    found = headline(
        scored("scale", "finetune", 0.8, (0.7, 0.9)),
        scored("backbone", "linear", 0.3, (0.2, 0.4)),
        scored("backbone", "transformer", 0.75, (0.65, 0.85)),
    )
    assert found.verdict == "unclear"
    assert "no clear difference from the transformer trained from scratch" in found.sentence


def test_pairs_without_fine_tuning_are_named_whatever_they_show() -> None:
    found = headline(
        scored("scale", "finetune", 0.8, (0.7, 0.9)),
        scored("scale", "knn", 0.35, (0.2, 0.5)),
        scored("backbone", "knn", 0.1, (0.0, 0.2)),
        scored("scale", "linear", 0.4, (0.3, 0.5)),
        scored("backbone", "linear", 0.45, (0.35, 0.55)),
    )
    assert (
        "Without fine-tuning: SCALE k-NN 35\u202f%, k-NN 10\u202f%; "
        "SCALE linear 40\u202f%, Linear 45\u202f%."
    ) in found.details


def test_clipset_speaks_through_fine_tuning_even_if_another_row_scored_higher() -> None:
    found = headline(
        scored("scale", "knn", 0.9, (0.85, 0.95)),
        scored("scale", "finetune", 0.6, (0.5, 0.7)),
        scored("backbone", "linear", 0.3, (0.2, 0.4)),
    )
    assert found.sentence.startswith("Fine-tuned clipset reaches 60\u202f%")


def test_a_score_at_chance_is_said_to_be_at_chance() -> None:
    found = headline(scored("scale", "knn", 0.3, (0.2, 0.4), chance_level=0.25))
    assert found.details == ("Chance level is 25\u202f%, not clearly less.",)


def test_the_backbone_alone_has_a_headline_too() -> None:
    found = headline(
        scored("backbone", "knn", 0.4, (0.3, 0.5)), scored("backbone", "linear", 0.6, (0.5, 0.7))
    )
    assert found.sentence.startswith("The linear probe on the backbone reaches 60\u202f% accuracy")
    assert found.verdict == "alone"


def test_the_caption_says_where_choices_were_made() -> None:
    selected_on = {"knn": None, "linear": "a fifth of the training videos"}
    results = [
        make_result("scale", p, selected_on=on, seeds=(0, 1)) for p, on in selected_on.items()
    ]
    (panel,) = group_results(results)
    assert describe_panel(panel) == (
        "Accuracy on the test split, 80 videos, 2 seeds, hyperparameters selected on a fifth of "
        "the training videos."
    )


def test_of_an_error_less_is_better() -> None:
    def error(features: str, probe: str, value: float) -> ProbeResult:
        interval = (value - 0.2, value + 0.2)
        return scored(features, probe, value, interval, metric="mse", chance_level=9.5)

    ours, baseline = error("scale", "linear", 3.0), error("backbone", "linear", 4.0)
    panel = group_results([baseline, ours, error("backbone", "mlp", 3.6)])[0]
    found = write_headline(panel)
    assert found.verdict == "above"
    assert "reaches a mean squared error of 3 (95\u202f% interval 2.8–3.2)" in found.sentence
    assert "clearly better than the linear probe on the backbone with 4" in found.sentence
    assert any("the MLP on the backbone with 3.6" in detail for detail in found.details)
    assert "Predicting the mean gives 9.5." in found.details
    axis = panel_axis(panel)
    assert [text for _, text in axis.ticks] == ["0", "2.5", "5", "7.5", "10"]
    assert axis.position(baseline.value) == 40
