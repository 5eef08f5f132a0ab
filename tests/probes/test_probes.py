"""Each probe, the search of its settings, few labels, targets, and the tasks of a store."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Generator, Tensor

from clipset.data.catalog import Catalog, Video, read_catalog_table
from clipset.data.splits import subset_indices
from clipset.errors import CatalogError, ProbeError
from clipset.evaluation.suite import run_suite
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.model.knn import knn_probabilities
from clipset.probes import ordered
from clipset.probes.base import ProbeSetup, Selection, equal_epochs, predict_videos
from clipset.probes.config import EvaluateConfig, ProbeName, ProbeTraining
from clipset.probes.finetune import FinetuneProbe
from clipset.probes.inputs import VideoInputs
from clipset.probes.linear import LinearProbe
from clipset.probes.ordered import OrderedProbe
from clipset.probes.ordered import Ridge as OurRidge
from clipset.probes.registry import PROBES, make_probe, rebuild_classifier
from clipset.probes.search import make_validation_split, split_training_videos
from clipset.probes.task import EvaluationTask, HeldOut, LabelledVideos, make_task
from clipset.probes.transformer import (
    SetClassifier,
    TransformerProbe,
    TransformerSettings,
    TransformerTraining,
)
from clipset.sets import stored_clips
from clipset.sets.batch import ClipBatch
from clipset.training.checkpoint import ScaleModel

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol"
FIT = ProbeTraining(
    epochs=12, batch_sizes=(16,), num_clips=4, learning_rates=(3e-3,), encoder_lr_scales=(1.0,),
    head_learning_rates=(3e-2,), ordered_weights=(0.0,),
)  # fmt: skip
ALL_PROBES = tuple(PROBES)
QUICK = EvaluateConfig(num_seeds=2, mlp_hidden=16, training=FIT)
TINY = ModelConfig(width=32, num_layers=1, projection_hidden=(16, 16), projection_dim=8)


def clips_of(videos: int, signal: Any, seed: int) -> ClipBatch:
    generator = Generator().manual_seed(seed)
    features = torch.randn(videos, 8, 12, generator=generator)
    features[..., 0] += signal[:, None]
    return ClipBatch(features, torch.rand(videos, 8, 6, generator=generator))


def regression_task(strength: float, *, scale: float = 5.0, shift: float = 100.0) -> EvaluationTask:
    generator = Generator().manual_seed(0)
    truth, held = (torch.randn(count, generator=generator) for count in (80, 60))
    train = clips_of(80, strength * truth, 1)
    return EvaluationTask(
        classes=(),
        train=LabelledVideos(
            train, train, torch.zeros(80, dtype=torch.int64), (None,) * 80, truth * scale + shift
        ),
        test=HeldOut(
            tuple(map(str, range(60))), clips_of(60, strength * held, 2),
            torch.zeros(60, dtype=torch.int64), held * scale + shift,
        ),
    )  # fmt: skip


def class_task(
    signal: float, *, classes: int = 7, train: int = 70, test: int = 42
) -> EvaluationTask:
    def some(count: int, seed: int) -> tuple[ClipBatch, Any]:
        labels = torch.arange(count) % classes
        clips = clips_of(count, torch.zeros(count), seed)
        clips.features[..., :classes] += signal * torch.eye(classes)[labels][:, None]
        return clips, labels

    (known, labels), (held, truth) = some(train, 1), some(test, 2)
    return EvaluationTask(
        tuple("abcdefg"[:classes]),
        LabelledVideos(known, known, labels, (None,) * train),
        HeldOut(tuple(map(str, range(test))), held, truth),
    )


def timed_task() -> EvaluationTask:
    """The class is when something happens: the mean over time says nothing."""
    generator = Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    features = torch.randn(120, 8, 12, generator=generator) * 0.3
    features[torch.arange(120), labels * 2, 0] += 3.0
    clips = ClipBatch(features, torch.rand(120, 8, 6, generator=generator))
    first, rest = torch.arange(80), torch.arange(80, 120)
    return EvaluationTask(
        tuple("abcd"),
        LabelledVideos(clips.select(first), clips.select(first), labels[first], (None,) * 80),
        HeldOut(tuple(map(str, range(40))), clips.select(rest), labels[rest]),
    )


def small_model() -> ScaleModel:
    torch.manual_seed(0)
    return ScaleModel(12, TINY).eval()


@pytest.mark.parametrize("k", [1, 5, 20])
def test_knn_is_that_of_the_published_protocol(k: int) -> None:
    golden, arrays = json.loads((GOLDEN / "knn.json").read_text()), np.load(GOLDEN / "knn.npz")
    train, test = (torch.from_numpy(arrays[f"{n}_features"]).mean(dim=1) for n in ("train", "test"))
    labels, truth = (torch.from_numpy(arrays[f"{name}_labels"]) for name in ("train", "test"))

    def top1(bank: Any, queries: Any) -> float:
        count = int(labels.max()) + 1
        found = knn_probabilities(
            bank, labels, queries, num_classes=count, k=k, temperature=golden["T"]
        )
        return 100 * (found.argmax(dim=1) == truth).float().mean().item()

    centred = top1(train - train.mean(dim=0), test - test.mean(dim=0))
    assert centred == pytest.approx(golden["top1_percent_by_k"][str(k)], abs=1e-4)
    if k == 20:
        plain = golden["top1_percent_k20_without_centering"]
        assert top1(train, test) == pytest.approx(plain, abs=1e-4)


@pytest.mark.slow
def test_transformers_may_classify_by_the_set_token_alone() -> None:
    config = replace(QUICK, training=replace(QUICK.training, epochs=30, set_token_only=True))
    rows: Any = ("transformer", "finetune")
    for result in run_suite(class_task(8.0), small_model(), config, probes=rows).results:
        assert result.value > 0.9, result.probe
    probe = SetClassifier(small_model().encoder, 7, set_token_only=True)
    assert probe(class_task(1.0).train.random).shape == (70, 1, 7)
    assert probe.classify.in_features == TINY.width


def test_every_probe_finds_numbers_that_are_there() -> None:
    long_enough = replace(QUICK, training=replace(QUICK.training, epochs=30))
    results = run_suite(regression_task(8.0), small_model(), long_enough, probes=ALL_PROBES).results
    for result in results:
        assert result.metric == "mse"
        assert result.value < 0.6 * result.chance_level, result.probe
        assert result.interval[0] <= result.value <= result.interval[1]
        r2 = result.metrics["r2"]
        assert r2 is not None
        assert r2 > 0.4
        assert result.confusion is None


def test_no_probe_finds_numbers_that_are_not_there() -> None:
    for result in run_suite(regression_task(0.0), small_model(), QUICK, probes=ALL_PROBES).results:
        assert result.value > 0.8 * result.chance_level, result.probe


def test_errors_are_on_the_scale_of_the_targets() -> None:
    rows: Any = ("linear", "ordered", "knn")
    small, large = (
        run_suite(regression_task(2.0, scale=scale), None, QUICK, probes=rows).results
        for scale in (1, 10)
    )
    for one, ten in zip(small, large, strict=True):
        assert ten.value == pytest.approx(100 * one.value, rel=1e-2)


def test_the_clips_in_order_tell_what_their_mean_cannot() -> None:
    """The class is when something happens: its mean over time says nothing."""
    task = timed_task()
    rows: Any = ("ordered", "linear")
    suite = run_suite(task, None, QUICK, probes=rows)
    ordered, linear = (result.value for result in suite.results)
    assert ordered > 0.95
    assert linear < 0.5
    against = next(c for c in suite.comparisons if c.probe == "linear")
    assert against.baseline_probe == "ordered"
    assert against.interval[1] < 0
    assert against.p < 0.05  # 40 videos and two seeds


@pytest.mark.parametrize(
    ("channels", "equal_parts"), [(5, True), (5, False), (300, True), (300, False)],
    ids=["fewer than videos", "fewer, unscaled", "more than videos", "more, unscaled"],
)  # fmt: skip
@pytest.mark.parametrize("block_size", [25, 2048], ids=["in blocks", "at once"])
def test_ridge_is_that_of_scikit_learn_with_few_and_with_many_channels(
    channels: int, equal_parts: bool, block_size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ordered, "BLOCK_SIZE", block_size)
    monkeypatch.setattr(ordered, "GRAM_ROWS", block_size // 10)
    generator = Generator().manual_seed(0)
    inputs = VideoInputs(None, has_course=True)
    clips, others = (torch.randn(n, 8, channels, generator=generator) for n in (60, 9))
    train, queries = (inputs(ClipBatch(c, torch.zeros(len(c), 8, 6))) for c in (clips, others))
    wanted = torch.randn(60, generator=generator)
    ours = OurRidge(inputs, ClipBatch(clips, torch.zeros(60, 8, 6)), wanted, 1)
    gram = ours.gram(equal_parts)
    assert gram.shape == (min(60, 9 * channels),) * 2
    train, queries = (ours.standardise(vectors, equal_parts) for vectors in (train, queries))
    found = ours.predict(ours.solve(0.1, equal_parts), queries, 1.0)[:, 0]
    alpha = 0.1 * float(gram.diagonal().sum()) / 60
    theirs = Ridge(alpha=alpha).fit(train.double(), wanted.double())
    predicted = theirs.predict(queries.double())
    np.testing.assert_allclose(found.numpy(), predicted, atol=1e-4)


def test_scores_of_classes_are_as_large_as_those_of_left_out_videos_should_be() -> None:
    """The factor is that of a plain loop which leaves out one video after another."""
    generator = Generator().manual_seed(0)
    inputs = VideoInputs(None, has_course=True)
    clips = ClipBatch(torch.randn(30, 8, 40, generator=generator), torch.zeros(30, 8, 6))
    labels = torch.randint(3, (30,), generator=generator)
    clips.features[..., :3] += 3 * torch.eye(3)[labels][:, None]
    ridge = OurRidge(inputs, clips, labels, 3)
    vectors = ridge.standardise(inputs(clips), True).double()
    alpha = float(ridge.gram(True).diagonal().mean())
    targets = torch.eye(3).double()[labels]
    targets -= targets.mean(dim=0)
    left_out = []
    for video in range(30):
        others = torch.arange(30) != video
        plain = Ridge(alpha=alpha, fit_intercept=False).fit(vectors[others], targets[others])
        left_out.append(plain.predict(vectors[video : video + 1])[0])
    scores = torch.from_numpy(np.stack(left_out))
    slope = float((scores * targets).sum() / scores.square().sum())
    plain = Ridge(alpha=alpha, fit_intercept=False).fit(vectors, targets)
    assert slope > 1  # regression shrinks
    np.testing.assert_allclose(ridge.solve(1.0, True).numpy(), slope * plain.coef_.T, atol=1e-4)


def test_with_one_label_of_each_class_transformers_are_the_clips_in_order() -> None:
    """There are no validation videos to select a weight on."""
    rows: Any = ("transformer", "finetune", "ordered", "scale_ordered")
    config = replace(QUICK, training=replace(FIT, ordered_weights=(0.0, 0.5, 1.0)))
    suite = run_suite(class_task(4.0, train=7), small_model(), config, probes=rows)
    transformer, finetune, ordered, scale_ordered = suite.results
    for mixed, own in ((transformer, ordered), (finetune, scale_ordered)):
        assert mixed.settings["ordered_weight"] == 1.0
        assert mixed.selected_on is None
        assert not own.settings["equal_parts"]
        outputs = suite.predictions.outputs
        np.testing.assert_allclose(outputs[mixed.key][0], outputs[own.key][0], atol=1e-5)


def one_clip_each(features: Tensor) -> ClipBatch:
    return ClipBatch(features[:, None], torch.zeros(len(features), 1, 6))


def test_ridge_with_far_more_channels_than_videos_is_solved_by_its_videos() -> None:
    generator = Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    train = torch.randn(40, 5000, generator=generator)
    train[:, :4] += 40 * torch.eye(4)[labels]
    clips = one_clip_each(train)
    task = EvaluationTask(
        tuple("abcd"),
        LabelledVideos(clips, clips, labels, (None,) * 40),
        HeldOut((), clips, labels),
    )
    probe = OrderedProbe(ProbeSetup(task=task, model=None, config=QUICK, seed=0), "backbone")
    classifier = probe.fit(probe.search(), torch.arange(40), 0)
    found = predict_videos(classifier, clips)
    assert probe._ridge(torch.arange(40)).is_dual
    assert (found.argmax(dim=1) == labels).all()
    torch.testing.assert_close(found.sum(dim=1), torch.ones(40))


def test_ridge_takes_the_least_penalty_that_is_not_clearly_worse() -> None:
    """All of them are right about classes far apart; noise is best predicted by its mean."""
    generator = Generator().manual_seed(0)
    labels, noise = torch.arange(400) % 4, torch.randn(400, generator=generator)
    features = torch.randn(400, 20, generator=generator)
    features[:, :4] += 40 * torch.eye(4)[labels]
    clips = one_clip_each(features)
    for targets, penalty in ((None, min(ordered.PENALTIES)), (noise, max(ordered.PENALTIES))):
        videos = LabelledVideos(clips, clips, labels, (None,) * 400, targets)
        classes = tuple("abcd") if targets is None else ()
        task = EvaluationTask(classes, videos, HeldOut((), clips, labels, targets))
        probe = OrderedProbe(ProbeSetup(task=task, model=None, config=QUICK, seed=0), "backbone")
        assert probe.search().settings.penalty == penalty


def test_results_say_what_was_selected_among_how_many() -> None:
    config = replace(QUICK, num_seeds=1, training=replace(FIT, head_learning_rates=(1e-2, 3e-2)))
    results = run_suite(class_task(2.0), small_model(), config).results
    candidates = {result.key: result.num_candidates for result in results}
    assert candidates["backbone", "linear"] == 8
    assert candidates["backbone", "ordered"] == 40
    for result in results:
        if "knn" in result.probe:
            assert result.selected_on is None
        else:
            assert result.selected_on == "18 of 70 training videos (stratified)"
        top1, top5 = result.metrics["top1"], result.metrics["top5"]
        assert top1 is not None
        assert top5 is not None
        assert top1 <= top5 <= 1.0
        assert result.metrics["mean_class"] == pytest.approx(top1)  # classes are of equal size


def test_a_named_validation_split_is_chosen_by_and_not_learned_from() -> None:
    task = class_task(2.0)
    named = class_task(2.0, train=21).train
    with_named = replace(task, validation=named)
    results = run_suite(with_named, small_model(), QUICK, probes=ALL_PROBES).results
    assert {r.selected_on for r in results if "knn" not in r.probe} == {
        "the 21 videos of the split 'val'"
    }


def test_the_final_probe_also_learns_from_the_validation_videos() -> None:
    task = class_task(2.0)
    learned = make_validation_split(task.train, 0).train
    every = torch.arange(70)
    features = task.train.random.features.clone()
    features[~torch.isin(every, learned)] = 0.0
    other = replace(
        task, train=replace(task.train, random=ClipBatch(features, task.train.random.boxes))
    )
    config = replace(QUICK, num_seeds=1)
    for videos, same in ((learned, True), (every, False)):
        outputs = []
        for each in (task, other):
            setup = ProbeSetup(task=each, model=None, config=config, seed=0)
            probe = LinearProbe(setup, "backbone")
            selection = LinearProbe(replace(setup, task=task), "backbone").search()
            outputs.append(predict_videos(probe.fit(selection, videos, seed=0), task.test.clips))
        assert torch.allclose(*outputs, atol=1e-6) is same


def test_the_encoder_learns_at_its_own_learning_rate() -> None:
    task = class_task(2.0)
    encoder = small_model().encoder

    def moved(scale: float) -> tuple[float, float]:
        settings = TransformerSettings(
            learning_rate=1e-3, weight_decay=1e-2, encoder_lr_scale=scale, batch_size=16
        )
        training = TransformerTraining(
            SetClassifier(small_model().encoder, 7), task.train, FIT, settings,
            num_epochs=2, seed=0,
        )  # fmt: skip
        network = training.network
        before = network.classify.weight.detach().clone()
        training.run_epoch()
        return (
            (network.encoder.project.weight - encoder.project.weight).abs().max().item(),
            (network.classify.weight - before).abs().max().item(),
        )

    full, gentle = moved(1.0), moved(0.01)
    assert gentle[0] < 0.05 * full[0]
    assert gentle[1] > 0.5 * full[1]


def finetune(task: EvaluationTask, training: ProbeTraining) -> FinetuneProbe:
    config = replace(QUICK, training=training)
    setup = ProbeSetup(task=task, model=small_model(), config=config, seed=0)
    return FinetuneProbe(setup, "scale")


def test_the_learning_rate_of_the_encoder_is_searched_on_validation_videos() -> None:
    training = replace(FIT, learning_rates=(1e-3, 3e-3), encoder_lr_scales=(0.1, 1.0))
    selection = finetune(class_task(2.0), training).search()
    assert selection.settings.encoder_lr_scale in (0.1, 1.0)
    assert selection.num_candidates == 4
    assert selection.selected_on == "18 of 70 training videos (stratified)"
    assert 1 <= (selection.epochs or 0) <= FIT.epochs


@pytest.mark.parametrize("name", ["finetune", "mlp"])
def test_the_learning_rate_falls_within_the_epochs_of_the_final_training(name: ProbeName) -> None:
    """As if no more epochs than the best ones on validation videos had ever been planned."""

    def final_weights(training: ProbeTraining) -> dict[str, Tensor]:
        config = replace(QUICK, training=training)
        setup = ProbeSetup(task=class_task(2.0), model=small_model(), config=config, seed=0)
        probe = make_probe(name, setup)
        classifier = probe.fit(replace(probe.search(), epochs=3), torch.arange(70), 0)
        return dict(classifier.state_dict())

    weights, expected = final_weights(FIT), final_weights(replace(FIT, epochs=3))
    assert all(torch.equal(weights[key], expected[key]) for key in expected)


@pytest.mark.parametrize("best_epoch", [1, 2, 5, 10, 20, 30, 39, 40])
def test_learning_rates_add_up_to_those_until_the_best_epoch(best_epoch: int) -> None:
    def rates(num_epochs: int) -> np.ndarray:  # in the middle of each epoch
        return 0.5 + 0.5 * np.cos(np.pi * (np.arange(num_epochs) + 0.5) / num_epochs)

    num_epochs = equal_epochs(best_epoch, 40)
    assert best_epoch <= num_epochs <= 40
    assert rates(num_epochs).sum() == pytest.approx(rates(40)[:best_epoch].sum(), abs=0.3)


def test_without_early_stopping_all_epochs_are_run() -> None:
    task = class_task(5.0)  # so easy that the first epochs are as good as the last
    late = replace(FIT, early_stopping=False)

    def search(training: ProbeTraining, *rates: float) -> Selection:
        return finetune(task, replace(training, learning_rates=rates)).search()

    assert search(late, 1e-3, 3e-3).epochs == FIT.epochs
    assert search(late, 1e-9, 3e-3).learning_rate == 3e-3  # by the score of the last epoch
    assert search(late, 3e-3).selected_on is None  # a single candidate is not searched
    assert search(FIT, 3e-3).selected_on is not None
    config = replace(QUICK, num_seeds=1, probes=("linear", "mlp", "finetune"), training=late)
    *heads, tuned = run_suite(task, small_model(), config).results
    assert [head.epochs for head in heads] == [12, 12]
    assert (tuned.epochs, tuned.selected_on) == (12, None)


def test_low_shot_labels_are_those_of_the_published_protocol() -> None:
    """The first videos of each class; a random draw has as many."""
    golden = json.loads((GOLDEN / "low_shot_subset.json").read_text())
    labels = golden["labels"]
    clips = clips_of(len(labels), torch.arange(len(labels)), 0)
    task = EvaluationTask(
        ("a", "b", "c"),
        LabelledVideos(clips, clips, torch.tensor(labels), (None,) * len(labels)),
        HeldOut((), clips.select(torch.arange(0)), torch.zeros(0, dtype=torch.int64)),
    )
    for fraction in (0.1, 0.25):
        expected = golden[f"fraction_{fraction}"]
        assert subset_indices(labels, fraction=fraction) == expected
        first = task.subsample_labels(fraction, seed=None).train
        assert torch.equal(first.random.features, clips.features[expected])
        few = task.subsample_labels(fraction, seed=0).train
        counts = torch.tensor(labels)[expected].bincount()
        assert torch.equal(few.classes.bincount(), counts)


def test_each_seed_draws_its_own_few_labels_and_the_result_says_how_many() -> None:
    config = replace(QUICK, num_seeds=3, label_fraction=0.2)
    names: Any = ("knn", "ordered", "linear")
    suite = run_suite(class_task(1.0), None, config, probes=names)
    for result in suite.results:
        assert result.seeds == (0, 1, 2)
        assert result.settings["labels"] == "14 of 70 training labels"
        outputs = suite.predictions.outputs[result.key]
        assert not np.allclose(outputs[0], outputs[1])


def test_the_first_labels_are_the_same_for_all_seeds_and_probes() -> None:
    config = replace(QUICK, num_seeds=2, label_fraction=0.2, label_selection="first")
    names: Any = ("knn", "linear")
    task = class_task(1.0)
    few = task.subsample_labels(0.2, seed=None)
    suite = run_suite(task, None, config, probes=names)
    expected = run_suite(few, None, replace(config, label_fraction=None), probes=names)
    for result in suite.results:
        assert result.settings["labels"] == "14 of 70 training labels"
        outputs = [each.predictions.outputs[result.key] for each in (suite, expected)]
        assert np.array_equal(*outputs)
    assert [result.seeds for result in suite.results] == [(0,), (0, 1)]


def test_probes_may_also_learn_from_the_regular_clips() -> None:
    task = class_task(2.0)
    both = task.train.train_on_all_clips()
    assert both.random.features.shape[1] == 16
    config = replace(QUICK, num_seeds=1, training=replace(FIT, train_clips="all"))
    results = run_suite(task, small_model(), config).results
    assert all(result.value > 1 / 7 for result in results)


def confounded(count: int, seed: int, *, misleading: bool) -> tuple[ClipBatch, Any]:
    """The class is which of two channels varies within a video; another channel's mean hints at it
    in training, and at the other class in the test."""
    labels = torch.arange(count) % 2
    clips = clips_of(count, torch.zeros(count), seed)
    swing = torch.tensor([4.0, -4.0]).repeat(4)
    clips.features[torch.arange(count), :, 1 + labels] += swing
    hint = 1 - labels if misleading else labels
    clips.features[..., 0] += 3.0 * (2.0 * hint[:, None] - 1.0)
    return clips, labels


@pytest.mark.slow
def test_videos_may_be_judged_by_their_random_clips_too_but_not_in_order() -> None:
    """What tells the classes apart is seen in random clips alone."""
    task = class_task(0.0)
    random = class_task(5.0).train.random
    held = class_task(5.0).test.clips
    truth = torch.arange(42) % 7
    test = HeldOut(task.test.ids, task.test.clips, truth, random=held)
    train = replace(task.train, random=random)
    hidden = replace(task, train=train, test=test)
    rows: Any = ("knn", "scale_knn", "linear", "scale_linear", "finetune", "ordered")

    def scores(test_clips: Any, train_clips: Any) -> dict[str, float]:
        fit = replace(FIT, train_clips=train_clips)
        config = replace(QUICK, num_seeds=1, test_clips=test_clips, probes=rows, training=fit)
        found = run_suite(hidden, small_model(), config).results
        return {f"{each.features} {each.probe}": each.value for each in found}

    for train_clips in ("random", "all"):
        alone, together = scores("regular", train_clips), scores("all", train_clips)
        assert alone.pop("backbone ordered") == together.pop("backbone ordered") < 0.4
        assert max(alone.values()) < 0.5 < min(together.values())
    with pytest.raises(ProbeError, match="no random clips"):
        run_suite(task, None, replace(QUICK, test_clips="all"))


@pytest.mark.slow
def test_with_mixed_means_a_transformer_learns_less_from_what_never_changes_in_a_video() -> None:
    (known, labels), (held, truth) = (
        confounded(80, 1, misleading=False), confounded(60, 2, misleading=True)
    )  # fmt: skip
    task = EvaluationTask(
        ("left", "right"),
        LabelledVideos(known, known, labels, (None,) * 80),
        HeldOut(tuple(map(str, range(60))), held, truth),
    )
    fit = replace(FIT, epochs=40, num_clips=8, set_token_only=True)
    plain, mixed = (
        run_suite(
            task, small_model(), replace(QUICK, num_seeds=1, training=replace(fit, mix_means=mix)),
            probes=("finetune",),
        ).results[0].value
        for mix in (False, True)
    )  # fmt: skip
    assert mixed > plain + 0.3


def test_one_video_of_each_class_is_learned_from_without_a_choice() -> None:
    task = class_task(8.0, train=7)
    for result in run_suite(task, small_model(), QUICK, probes=ALL_PROBES).results:
        assert result.selected_on is None
        if result.probe not in ("transformer", "finetune"):  # twelve steps are too few for those
            assert result.value > 2 / 7, result.probe  # twice what guessing reaches


def test_a_model_of_another_backbone_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ProbeError, match=r"have 12 channels, the model takes 20; .*another"):
        run_suite(class_task(1.0), ScaleModel(20, TINY), QUICK)


def test_rows_that_need_a_model_are_refused_without_one() -> None:
    with pytest.raises(ProbeError, match="need a trained model"):
        run_suite(class_task(1.0), None, replace(QUICK, probes=("scale_knn",)))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"num_seeds": 0}, "at least 1"),
        ({"mlp_hidden": 3}, "at least 4"),
        ({"probes": ()}, "at least one probe"),
        ({"probes": ("knn", "knn")}, "each once"),
        ({"label_fraction": 1.5}, "at most 1"),
        ({"label_fraction": 0.0}, "more than 0"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: Any, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        EvaluateConfig(**setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"learning_rates": ()}, "learning_rates must list at least one"),
        ({"head_learning_rates": (0.0,)}, "more than 0"),
        ({"weight_decays": (-1.0,)}, "weight_decays must list at least one value, each at least 0"),
        ({"batch_sizes": (0,)}, "batch_sizes must list at least one value, each more than 0"),
        ({"optimizers": ()}, "optimizers must list at least one"),
        ({"batch_norm": ()}, "batch_norm must list at least one"),
    ],
)
def test_training_that_makes_no_sense_is_refused(setting: Any, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        ProbeTraining(**setting)


def with_facts(store: FeatureStore, **facts: Any) -> Catalog:
    """The store's catalog with other facts: each a function of the video's place and the video."""
    return store.catalog.only(
        replace(video, **{name: make(place, video) for name, make in facts.items()})
        for place, video in enumerate(store.catalog)
    )


def test_videos_without_a_label_are_passed_over_and_said(
    small_store: FeatureStore, capfd: pytest.CaptureFixture[str]
) -> None:
    catalog = with_facts(small_store, label=lambda place, v: None if place % 4 == 0 else v.label)
    task = make_task(small_store, catalog)
    assert len(task.train) + len(task.test) == 18
    assert "6 of 24 videos have no label: skipped" in capfd.readouterr().err


def test_all_clips_of_a_stored_video_are_its_random_and_its_regular_ones(
    small_store: FeatureStore,
) -> None:
    task = make_task(small_store)
    more = task.predict_from_all_clips()
    assert more.test.ids == task.test.ids
    counts = [clips.features.shape[1] for clips in (task.train.random, task.test.clips)]
    assert more.test.clips.features.shape[1] == sum(counts)
    assert torch.equal(more.test.clips.features[:, counts[0] :], task.test.clips.features)


def test_targets_pose_a_problem_of_numbers(small_store: FeatureStore) -> None:
    catalog = with_facts(small_store, label=lambda *_: None, target=lambda place, _: float(place))
    task = make_task(small_store, catalog)
    assert task.classes == ()
    assert task.num_outputs == 1
    assert task.train.targets is not None
    result = run_suite(task, None, QUICK, probes=("ordered",)).results[0]
    assert result.metric == "mse"
    same = with_facts(small_store, label=lambda *_: None, target=lambda *_: 1.0)
    with pytest.raises(ProbeError, match="the same target"):
        make_task(small_store, same)


def test_targets_that_are_no_numbers_are_refused(tmp_path: Path) -> None:
    (tmp_path / "c.csv").write_text("path,target\na.mp4,3.5\nb.mp4,many\n")
    with pytest.raises(CatalogError, match=r"target of 'b.mp4' must be a number, got 'many'"):
        read_catalog_table(tmp_path / "c.csv")


def test_a_split_for_choices_is_found_next_to_a_test_split(small_store: FeatureStore) -> None:
    catalog = with_facts(
        small_store, split=lambda place, v: "val" if v.split == "train" and place < 6 else v.split
    )
    task = make_task(small_store, catalog)
    assert task.split == "test"
    assert task.validation is not None
    assert 0 < len(task.validation) <= 6
    judged = with_facts(small_store, split=lambda _, v: "val" if v.split == "test" else v.split)
    alone = make_task(small_store, judged)
    assert alone.split == "val"
    assert alone.validation is None


def test_several_unknown_classes_are_counted(small_store: FeatureStore) -> None:
    catalog = with_facts(
        small_store, label=lambda _, v: f"new {v.label}" if v.split == "test" else v.label
    )
    with pytest.raises(ProbeError, match=r"the label 'new blue' \(and 2 more\)"):
        make_task(small_store, catalog)


def test_a_class_without_a_readable_training_video_is_not_scored_if_splits_were_drawn(
    small_store: FeatureStore, capfd: pytest.CaptureFixture[str]
) -> None:
    given = small_store.catalog.only(
        v for v in small_store.catalog if (v.label, v.split) != ("blue", "train")
    )
    with pytest.raises(ProbeError, match="no training video has the label 'blue' of the test"):
        make_task(small_store, given)
    task = make_task(small_store, replace(given, has_drawn_splits=True))
    assert task.classes == ("green", "red")
    assert len(task.test) == 4
    assert task.not_scored == (
        "2 videos of 'blue': no training video of the same label could be read"
    )
    assert f"not scored: {task.not_scored}\n" in capfd.readouterr().err
    unlearned = given.only(v for v in given if v.split == "train" or v.label == "blue")
    with pytest.raises(ProbeError, match="no training video has the label 'blue' of the test"):
        make_task(small_store, replace(unlearned, has_drawn_splits=True))


def test_a_video_that_could_not_be_read_is_named_where_its_class_is_missing(
    small_store: FeatureStore,
) -> None:
    lost = Video(id="lost.mp4", path=Path("lost.mp4"), label="new", split="train")
    labels = with_facts(small_store, label=lambda _, v: "new" if v.split == "test" else v.label)
    store = FeatureStore(small_store.folder)
    entry = replace(store.entries[0], id="lost.mp4", status="failed", reason="it is empty")
    store.failed = [entry]
    with pytest.raises(ProbeError, match=r"'new' .* \(lost.mp4 could not be read: it is empty\)"):
        make_task(store, labels.only([*labels, lost]))


def test_a_catalog_that_cannot_be_divided_says_so_instead_of_asking_for_a_split(
    small_store: FeatureStore,
) -> None:
    catalog = with_facts(small_store, split=lambda *_: "train", group=lambda *_: "one")
    with pytest.raises(ProbeError, match="the catalog's column split needs both train and test"):
        make_task(small_store, catalog)
    with pytest.raises(ProbeError, match="no test videos: the videos form 1 group that cannot be"):
        make_task(small_store, replace(catalog, has_drawn_splits=True))


def test_a_store_without_a_readable_video_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.mp4").write_text("not a video")
    videos = tuple(
        Video(id=name, path=tmp_path / f"{name}.mp4", label=name, split="train") for name in "ab"
    )
    config = ExtractConfig(size=32, frames=2, engine="torch", workers=0)
    extract(Catalog(name="broken", videos=videos), tmp_path / "store", config)
    with pytest.raises(ProbeError, match="no video of the store could be read; the first: "):
        make_task(FeatureStore(tmp_path / "store"))


def test_knn_votes_like_a_plain_loop() -> None:
    generator = Generator().manual_seed(3)
    bank, queries = torch.randn(25, 6, generator=generator), torch.randn(4, 6, generator=generator)
    labels = torch.arange(25) % 4
    outputs = knn_probabilities(bank, labels, queries, num_classes=4, k=5, temperature=0.1)
    for query, votes in zip(queries, outputs, strict=True):
        cosines = [float(query @ each / query.norm() / each.norm()) for each in bank]
        nearest = sorted(range(25), key=lambda index: -cosines[index])[:5]
        weights = np.exp([cosines[index] / 0.1 for index in nearest])
        by_hand = np.zeros(4)
        for index, weight in zip(nearest, weights, strict=True):
            by_hand[labels[index]] += weight / weights.sum()
        np.testing.assert_allclose(votes.numpy(), by_hand, rtol=1e-4)


def test_the_order_of_training_videos_does_not_matter_to_knn() -> None:
    task = class_task(1.0)
    bank, queries = (c.features.mean(dim=1) for c in (task.train.regular, task.test.clips))
    order = torch.randperm(70, generator=Generator().manual_seed(0))
    one, two = (
        knn_probabilities(bank[o], task.train.classes[o], queries, num_classes=7)
        for o in (torch.arange(70), order)
    )
    torch.testing.assert_close(one, two)


def test_predictions_are_the_mean_softmax_over_the_clips() -> None:
    task = class_task(1.0)
    setup = ProbeSetup(task=task, model=None, config=QUICK, seed=0)
    probe = LinearProbe(setup, "backbone")
    classifier = probe.fit(probe.search(), torch.arange(70), seed=0)
    clips = task.test.clips
    by_hand = torch.stack(
        [
            torch.stack([classifier(ClipBatch(f[None, None], b[None, None]))[0, 0].softmax(0)
                         for f, b in zip(features, boxes, strict=True)]).mean(0)
            for features, boxes in zip(clips.features[:5], clips.boxes[:5], strict=True)
        ]
    )  # fmt: skip
    torch.testing.assert_close(predict_videos(classifier, clips.select(slice(0, 5))), by_hand)


def test_fine_tuning_changes_a_copy_of_the_encoder() -> None:
    task, probe = class_task(1.0), finetune(class_task(1.0), replace(FIT, epochs=2))
    before = probe.setup.encoder().project.weight.clone()
    network = probe.fit(probe.search(), torch.arange(70), seed=0)
    assert torch.equal(probe.setup.encoder().project.weight, before)
    assert not torch.equal(network.encoder.project.weight, before)
    assert network(task.test.clips).shape == (42, 8, 7)


def test_no_group_is_both_learned_from_and_validated_on() -> None:
    train = class_task(1.0).train
    groups = tuple(f"person {number % 8}" for number in range(70))
    parts = split_training_videos(replace(train, groups=groups), 0.25, seed=0)
    assert parts is not None
    learned, validated = ({groups[int(index)] for index in part} for part in parts)
    assert not learned & validated


def test_a_class_with_one_video_is_only_learned_from() -> None:
    train = class_task(1.0, classes=6).train
    classes = train.classes.clone()
    classes[20] = 6
    parts = split_training_videos(replace(train, classes=classes), 0.25, seed=0)
    assert parts is not None
    assert 20 in parts[0].tolist()


def test_with_too_few_videos_nothing_is_searched() -> None:
    task = class_task(1.0, train=7)
    assert make_validation_split(task.train, 0).validation is None
    selection = finetune(task, FIT).search()
    assert (selection.selected_on, selection.num_candidates) == (None, 1)


def test_a_transformer_is_mixed_with_the_clips_in_order_where_that_helps() -> None:
    """The class is when something happens, which so short a training does not learn."""
    task = timed_task()
    weights = (0.0, 0.5, 1.0)
    config = replace(QUICK, num_seeds=1, training=replace(FIT, epochs=2, ordered_weights=weights))
    setup = ProbeSetup(task=task, model=None, config=config, seed=0)
    probe = TransformerProbe(setup, "backbone")
    selection = probe.search()
    assert selection.settings.ordered_weight > 0
    classifier = probe.fit(selection, torch.arange(80), 0)
    outputs = predict_videos(classifier, task.test.clips)
    assert (outputs.argmax(dim=1) == torch.arange(80, 120) % 4).float().mean() > 0.9
    torch.testing.assert_close(outputs.sum(dim=1), torch.ones(40))
    again = rebuild_classifier(
        "transformer", classifier.state_dict(), config, num_outputs=4, feature_dim=12,
        model=setup.architecture,
    )  # fmt: skip
    torch.testing.assert_close(predict_videos(again, task.test.clips), outputs)
    finetuned = FinetuneProbe(replace(setup, model=small_model()), "scale").search()
    assert finetuned.settings.ordered_weight == selection.settings.ordered_weight
    every_clip = replace(setup, config=replace(config, test_clips="all"))
    assert TransformerProbe(every_clip, "backbone").search().settings.ordered_weight == 0


def test_a_mixture_with_refined_tokens_is_saved_with_both_encoders() -> None:
    task, model = timed_task(), small_model()
    config = replace(QUICK, num_seeds=1, training=replace(FIT, epochs=2, ordered_weights=(0.5,)))
    probe = FinetuneProbe(ProbeSetup(task=task, model=model, config=config, seed=0), "scale")
    classifier = probe.fit(probe.search(), torch.arange(80), 0)
    again = rebuild_classifier(
        "finetune", classifier.state_dict(), config, num_outputs=4, feature_dim=12,
        model=model.config,
    )  # fmt: skip
    outputs = predict_videos(classifier, task.test.clips)
    torch.testing.assert_close(predict_videos(again, task.test.clips), outputs)


def test_a_large_bank_of_vectors_is_a_file_in_half_precision(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    task = class_task(2.0)
    rows: Any = ("knn", "course_knn", "scale_course_knn")
    whole = run_suite(task, small_model(), QUICK, probes=rows).predictions.outputs
    monkeypatch.setattr(stored_clips, "MEMORY_LIMIT", 0)
    half = run_suite(task, small_model(), QUICK, probes=rows).predictions.outputs
    for key, outputs in whole.items():
        assert not np.array_equal(outputs, half[key])
        np.testing.assert_allclose(outputs, half[key], atol=0.02)
