"""All probes on one task: scores, order, and test labels that nobody sees too early."""

import copy
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch

from clipset.data.catalog import Catalog
from clipset.errors import ProbeError
from clipset.evaluation.metrics import count_confusion
from clipset.evaluation.statistics import interval
from clipset.evaluation.suite import run_suite
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.probes.registry import PROBES, probe_key
from clipset.probes.task import EvaluationTask, HeldOut, LabelledVideos, make_task
from clipset.sets.batch import ClipBatch
from clipset.training.checkpoint import ScaleModel

QUICK = EvaluateConfig(
    num_seeds=2,
    mlp_hidden=16,
    training=ProbeTraining(
        epochs=15, batch_sizes=(16,), num_clips=4, learning_rates=(3e-3,), encoder_lr_scales=(1.0,),
        head_learning_rates=(3e-2,),
    ),
)  # fmt: skip
GRID = replace(
    QUICK,
    num_seeds=1,
    training=replace(QUICK.training, epochs=4, learning_rates=(1e-3, 3e-3),
                encoder_lr_scales=(0.1, 1.0),                head_learning_rates=(1e-2, 3e-2)),
)  # fmt: skip
ALL_PROBES = tuple(PROBES)
TINY = ModelConfig(width=32, num_layers=1, projection_hidden=(16, 16), projection_dim=8)


def made_up(videos: int, *, signal: float, seed: int, classes: int = 3) -> tuple[ClipBatch, Any]:
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(videos) % classes
    features = torch.randn(videos, 8, 12, generator=generator)
    features[..., :classes] += signal * torch.eye(classes)[labels][:, None]
    boxes = torch.rand(videos, 8, 6, generator=generator)
    return ClipBatch(features, boxes), labels


def made_up_task(
    signal: float, *, train: int = 60, test: int = 90, seed: int = 0
) -> EvaluationTask:
    clips, labels = made_up(train, signal=signal, seed=2 * seed)
    held, truth = made_up(test, signal=signal, seed=2 * seed + 1)
    return EvaluationTask(
        classes=("a", "b", "c"),
        train=LabelledVideos(clips, clips, labels, (None,) * train),
        test=HeldOut(tuple(map(str, range(test))), held, truth),
    )


def small_model() -> ScaleModel:
    torch.manual_seed(0)
    return ScaleModel(12, TINY).eval()


def test_every_probe_is_perfect_where_classes_are_far_apart() -> None:
    results = run_suite(made_up_task(8.0), small_model(), QUICK, probes=ALL_PROBES).results
    assert [result.key for result in results] == [probe_key(name) for name in ALL_PROBES]
    assert all(result.value > 0.97 for result in results)


def test_every_probe_is_at_chance_on_noise() -> None:
    """Here one interval of 95 % in 20 may miss it, and those of one task are alike."""
    tasks = [
        run_suite(made_up_task(0.0, seed=seed), small_model(), QUICK, probes=ALL_PROBES).results
        for seed in range(4)
    ]
    outside = [not r.interval[0] < 1 / 3 < r.interval[1] for results in tasks for r in results]
    assert np.mean(outside) < 0.1
    for results in zip(*tasks, strict=True):  # of one probe
        assert all(0.15 < result.value < 0.55 for result in results)
        assert np.mean([result.value for result in results]) == pytest.approx(1 / 3, abs=0.08)


def test_the_table_has_the_papers_rows_and_the_clips_in_order() -> None:
    keys = [probe_key(name) for name in EvaluateConfig().probes]
    assert keys[:7] == [
        ("backbone", "knn"), ("scale", "knn"), ("backbone", "linear"), ("scale", "linear"),
        ("backbone", "mlp"), ("backbone", "transformer"), ("scale", "finetune"),
    ]  # fmt: skip
    assert keys[7:] == [
        ("backbone", "course_knn"), ("scale", "course_knn"),
        ("backbone", "ordered"), ("scale", "ordered"),
    ]  # fmt: skip


@pytest.mark.slow
def test_neither_the_order_of_the_rows_nor_that_of_the_test_videos_matters() -> None:
    task = made_up_task(1.0)
    order = torch.randperm(90, generator=torch.Generator().manual_seed(0))
    held = HeldOut(
        tuple(task.test.ids[int(place)] for place in order),
        task.test.clips.select(order),
        task.test._classes[order],
    )
    one = run_suite(task, small_model(), QUICK, probes=ALL_PROBES)
    two = run_suite(
        EvaluationTask(task.classes, task.train, held),
        small_model(),
        QUICK,
        probes=ALL_PROBES[::-1],
    )
    for row, outputs in one.predictions.outputs.items():
        other = two.predictions.outputs[row]
        np.testing.assert_allclose(outputs[:, order.numpy()], other, atol=1e-4, err_msg=str(row))


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
        run_suite(
            EvaluationTask(task.classes, task.train, held), small_model(), GRID, probes=ALL_PROBES
        ).results
        for held in (sealed, shuffled)
    )
    assert sealed.opened == sum(len(result.seeds) for result in ours)
    for one, two in zip(ours, theirs, strict=True):
        assert one.selected_on == two.selected_on
        assert (one.learning_rate, one.epochs) == (two.learning_rate, two.epochs)
        assert one.settings == two.settings
        columns = [np.array(r.confusion.counts).sum(axis=0).tolist() for r in (one, two)]
        assert columns[0] == columns[1]


def test_the_interval_covers_the_truth_about_95_times_of_100() -> None:
    rng = np.random.default_rng(0)
    covered = 0
    for _ in range(200):
        right = rng.random((1, 120)) < 0.7
        low, high = interval(right)
        covered += low <= 0.7 <= high
    assert 0.90 <= covered / 200 <= 0.99


def test_confusion_counts_and_class_accuracies_agree() -> None:
    judged = np.array([[0, 0], [0, 1], [2, 2], [2, 2]])
    confusion = count_confusion(judged, tuple("abc"))
    assert confusion.counts == ((1, 1, 0), (0, 0, 0), (0, 0, 2))
    assert list(confusion.class_accuracy().values()) == [0.5, None, 1.0]


def test_a_store_with_labels_poses_a_problem(small_store: FeatureStore) -> None:
    task = make_task(small_store)
    assert task.classes == ("blue", "green", "red")
    assert len(task.train) + len(task.test) == 24


def test_problems_without_an_answer_are_refused(small_store: FeatureStore) -> None:
    videos = small_store.catalog.videos
    cases = {
        "no readable video has a label": [_with(v, label=None) for v in videos],
        "same label": [_with(v, label="one") for v in videos],
        "split 'test'": [_with(v, split="train") for v in videos],
        "no training video has the label 'new'": [
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
    results = run_suite(make_task(small_store), None, QUICK).results
    assert {result.features for result in results} == {"backbone"}
    assert max(result.value for result in results) == 1.0


@pytest.mark.parametrize("training", [False, True])
def test_the_model_is_left_as_it_was(training: bool) -> None:
    """Its weights, and whether it is in training mode."""
    model = small_model().train(training)
    before = copy.deepcopy(model.state_dict())
    config = replace(QUICK, num_seeds=1, training=replace(QUICK.training, epochs=1))
    run_suite(made_up_task(1.0), model, config, probes=ALL_PROBES)
    assert {module.training for module in model.modules()} == {training}
    for name, value in model.state_dict().items():
        assert torch.equal(value, before[name]), name
