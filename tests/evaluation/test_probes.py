"""Laws of the probes."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clipset.data.catalog import Catalog
from clipset.errors import ProbeError
from clipset.evaluation.config import EvaluateConfig, ProbeTraining
from clipset.evaluation.fit import choose, fit, predict, validation_split
from clipset.evaluation.metrics import confusion, per_class
from clipset.evaluation.networks import ClipProbe, SetProbe
from clipset.evaluation.statistics import interval
from clipset.evaluation.suite import ALL_ROWS, ROWS, run_probes, run_suite
from clipset.evaluation.task import EvaluationTask, HeldOut, LabelledVideos, make_task
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.model.knn import knn_probabilities
from clipset.sets.batch import ClipBatch
from clipset.training.checkpoint import ScaleModel

QUICK = EvaluateConfig(
    num_seeds=2,
    mlp_hidden=16,
    training=ProbeTraining(
        epochs=15, batch_size=16, num_clips=4, learning_rates=(3e-3,), encoder_lr_scales=(1.0,),
        head_learning_rates=(3e-2,),
    ),
)  # fmt: skip
GRID = replace(
    QUICK,
    num_seeds=1,
    training=replace(QUICK.training, epochs=4, learning_rates=(1e-3, 3e-3),
                encoder_lr_scales=(0.1, 1.0),                head_learning_rates=(1e-2, 3e-2)),
)  # fmt: skip
TINY = ModelConfig(width=32, num_layers=1, projection_hidden=(16, 16), projection_dim=8)


def made_up(videos: int, *, signal: float, seed: int, classes: int = 3) -> tuple[ClipBatch, Any]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(videos) % classes
    features = torch.randn(videos, 8, 12, generator=generator)
    features[..., :classes] += signal * torch.eye(classes)[labels][:, None]
    boxes = torch.rand(videos, 8, 6, generator=generator)
    return ClipBatch(features, boxes), labels


def made_up_task(signal: float, *, train: int = 60, test: int = 90) -> EvaluationTask:
    clips, labels = made_up(train, signal=signal, seed=0)
    held, truth = made_up(test, signal=signal, seed=1)
    return EvaluationTask(
        classes=("a", "b", "c"),
        train=LabelledVideos(clips, clips, labels, (None,) * train),
        test=HeldOut(tuple(map(str, range(test))), held, truth),
    )


def small_model() -> ScaleModel:
    torch.manual_seed(0)
    return ScaleModel(12, TINY).eval()


def test_every_probe_is_perfect_where_classes_are_far_apart() -> None:
    results = run_probes(made_up_task(8.0), small_model(), QUICK, rows=ALL_ROWS)
    assert [(r.features, r.probe) for r in results] == list(ALL_ROWS)
    assert all(result.value > 0.97 for result in results)


def test_every_probe_is_at_chance_on_noise() -> None:
    for result in run_probes(made_up_task(0.0), small_model(), QUICK, rows=ALL_ROWS):
        assert 0.15 < result.value < 0.55
        assert result.interval[0] < 1 / 3 < result.interval[1]


def test_the_table_has_the_papers_rows_and_the_clips_in_order() -> None:
    assert ROWS[:7] == (
        ("backbone", "knn"), ("scale", "knn"), ("backbone", "linear"), ("scale", "linear"),
        ("backbone", "mlp"), ("backbone", "transformer"), ("scale", "finetune"),
    )  # fmt: skip
    assert ROWS[7:] == (("backbone", "ordered"),)


def test_neither_the_order_of_the_rows_nor_that_of_the_test_videos_matters() -> None:
    task = made_up_task(1.0)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    held = HeldOut(
        tuple(task.test.ids[int(place)] for place in order),
        task.test.clips.of(order),
        task.test._classes[order],
    )
    one = run_suite(task, small_model(), QUICK, rows=ALL_ROWS)
    two = run_suite(
        EvaluationTask(task.classes, task.train, held), small_model(), QUICK, rows=ALL_ROWS[::-1]
    )
    for row, outputs in one.predictions.outputs.items():
        other = two.predictions.outputs[row]
        np.testing.assert_allclose(outputs[:, order.numpy()], other, atol=1e-4, err_msg=str(row))


def test_the_order_of_training_videos_does_not_matter_to_knn() -> None:
    clips, labels = made_up(30, signal=1.0, seed=0)
    queries, _ = made_up(10, signal=1.0, seed=1)
    order = torch.randperm(30, generator=torch.Generator().manual_seed(0))
    bank = clips.features.mean(dim=1)
    one, two = (
        knn_probabilities(bank[o], labels[o], queries.features.mean(dim=1), num_classes=3)
        for o in (torch.arange(30), order)
    )
    torch.testing.assert_close(one, two)


def test_knn_votes_like_a_plain_loop() -> None:
    generator = torch.Generator().manual_seed(3)
    bank, queries = torch.randn(25, 6, generator=generator), torch.randn(4, 6, generator=generator)
    labels = torch.arange(25) % 4
    found = knn_probabilities(bank, labels, queries, num_classes=4, k=5, temperature=0.1)
    for query, votes in zip(queries, found, strict=True):
        cosines = [float(query @ each / query.norm() / each.norm()) for each in bank]
        nearest = sorted(range(25), key=lambda place: -cosines[place])[:5]
        weights = np.exp([cosines[place] / 0.1 for place in nearest])
        by_hand = np.zeros(4)
        for place, weight in zip(nearest, weights, strict=True):
            by_hand[labels[place]] += weight / weights.sum()
        np.testing.assert_allclose(votes.numpy(), by_hand, rtol=1e-4)


def test_predictions_are_the_mean_softmax_over_the_clips() -> None:
    torch.manual_seed(0)
    probe = ClipProbe(12, 3).eval()
    clips, _ = made_up(5, signal=1.0, seed=0)
    by_hand = torch.stack(
        [
            torch.stack([probe(ClipBatch(f[None, None], b[None, None]))[0, 0].softmax(0)
                         for f, b in zip(features, boxes, strict=True)]).mean(0)
            for features, boxes in zip(clips.features, clips.boxes, strict=True)
        ]
    )  # fmt: skip
    torch.testing.assert_close(predict(probe, clips), by_hand.detach())


def test_a_frozen_encoder_is_not_changed_by_its_probe_and_a_tuned_one_is() -> None:
    task = made_up_task(1.0)
    for frozen in (True, False):
        encoder = copy.deepcopy(small_model().encoder)
        before = copy.deepcopy(encoder.state_dict())
        config = ProbeTraining(epochs=2, batch_size=16, num_clips=4)
        network = fit(
            lambda: SetProbe(encoder, 3, frozen=frozen),  # noqa: B023
            task.train, config, rate=1e-2, epochs=2, seed=0,
        )  # fmt: skip
        assert isinstance(network, SetProbe)
        same = all(
            torch.equal(value, before[name]) for name, value in network.encoder.state_dict().items()
        )
        assert same is frozen


class Sealed(HeldOut):
    """Test videos whose labels may only be read once all choices are made."""

    def __init__(self, held: HeldOut) -> None:
        super().__init__(held.ids, held.clips, held._classes)
        self.opened = 0

    def evaluate(self, outputs: torch.Tensor) -> Any:
        self.opened += 1
        return super().evaluate(outputs)


def test_no_test_label_is_read_before_the_final_score() -> None:
    """With all test labels shuffled, every choice and prediction stays the same."""
    task = made_up_task(1.0)
    sealed = Sealed(task.test)
    shuffled = HeldOut(task.test.ids, task.test.clips, task.test._classes.flip(0) * 0)
    ours, theirs = (
        run_probes(
            EvaluationTask(task.classes, task.train, held), small_model(), GRID, rows=ALL_ROWS
        )
        for held in (sealed, shuffled)
    )
    assert sealed.opened == sum(len(result.seeds) for result in ours)
    for one, two in zip(ours, theirs, strict=True):
        assert one.selected_on == two.selected_on
        assert (one.learning_rate, one.epochs) == (two.learning_rate, two.epochs)
        assert one.settings == two.settings
        columns = [np.array(r.confusion.counts).sum(axis=0).tolist() for r in (one, two)]
        assert columns[0] == columns[1]


def test_choices_are_made_on_training_videos_and_the_record_says_which() -> None:
    task = made_up_task(2.0)
    chosen = choose(
        lambda: ClipProbe(12, 3), task.train, QUICK.training, learning_rates=(3e-2,), seed=0
    )
    assert chosen.selected_on == "15 of 60 training videos (stratified)"
    assert 1 <= chosen.epochs <= QUICK.training.epochs


def test_no_group_is_both_learned_from_and_chosen_by() -> None:
    clips, labels = made_up(40, signal=1.0, seed=0)
    groups = tuple(f"person {number % 8}" for number in range(40))
    parts = validation_split(LabelledVideos(clips, clips, labels, groups), 0.25, seed=0)
    assert parts is not None
    learned, checked = ({groups[int(place)] for place in part} for part in parts)
    assert not learned & checked


def test_a_class_with_one_video_is_only_learned_from() -> None:
    clips, labels = made_up(21, signal=1.0, seed=0)
    labels[20] = 3
    parts = validation_split(LabelledVideos(clips, clips, labels, (None,) * 21), 0.25, seed=0)
    assert parts is not None
    assert 20 in parts[0].tolist()


def test_with_too_few_videos_nothing_is_chosen_and_the_record_says_so() -> None:
    clips, labels = made_up(3, signal=1.0, seed=0)
    train = LabelledVideos(clips, clips, labels, (None,) * 3)
    chosen = choose(lambda: ClipProbe(12, 3), train, QUICK.training, rates=(3e-2,), seed=0)
    assert chosen.selected_on.startswith("nothing")


def test_the_interval_covers_the_truth_about_95_times_of_100() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        right = rng.random((1, 120)) < 0.7
        low, high = interval(right, rng)
        covered += low <= 0.7 <= high
    assert 0.90 <= covered / 200 <= 0.99


def test_confusion_counts_and_class_accuracies_agree() -> None:
    judged = np.array([[0, 0], [0, 1], [2, 2], [2, 2]])
    counts = confusion(judged, 3)
    assert counts.tolist() == [[1, 1, 0], [0, 0, 0], [0, 0, 2]]
    assert per_class(counts) == [0.5, None, 1.0]


def test_a_store_with_labels_poses_a_problem(small_store: FeatureStore) -> None:
    task = make_task(small_store)
    assert task.classes == ("blue", "green", "red")
    assert len(task.train) + len(task.test) == 24


def test_problems_without_an_answer_are_refused(small_store: FeatureStore) -> None:
    videos = small_store.catalog.videos
    cases = {
        "no video that could be read has a label": [_with(v, label=None) for v in videos],
        "same label": [_with(v, label="one") for v in videos],
        "split 'test'": [_with(v, split="train") for v in videos],
        "no training video shows 'new'": [
            _with(v, label="new") if v.split == "test" else v for v in videos
        ],
    }
    for message, changed in cases.items():
        with pytest.raises(ProbeError, match=message):
            make_task(small_store, Catalog(name="x", videos=tuple(changed)))


def _with(video: Any, **changes: Any) -> Any:
    return replace(video, **changes)


def test_the_tint_of_the_small_videos_is_easy_for_the_real_backbone(
    small_store: FeatureStore,
) -> None:
    results = run_probes(make_task(small_store), None, QUICK)
    assert {result.features for result in results} == {"backbone"}
    assert max(result.value for result in results) == 1.0
