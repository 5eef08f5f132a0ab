"""Rows beyond the paper, few labels, numbers instead of classes, named splits."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import Generator

from clipset.data.catalog import Catalog, Video, read_catalog_table
from clipset.data.splits import subset_indices
from clipset.errors import CatalogError, ProbeError
from clipset.evaluation.config import EvaluateConfig, ProbeTraining
from clipset.evaluation.fit import Choice, NetworkRun, choose
from clipset.evaluation.networks import SetProbe
from clipset.evaluation.selection import divide
from clipset.evaluation.solve import Ridge as OurRidge
from clipset.evaluation.solve import choose_ridge, solve_ridge, standardise
from clipset.evaluation.suite import ALL_ROWS, run_probes, run_suite
from clipset.evaluation.task import EvaluationTask, HeldOut, LabelledVideos, keep_few, make_task
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.model.knn import knn_probabilities
from clipset.sets.batch import ClipBatch
from clipset.training.checkpoint import ScaleModel

GOLDEN = Path(__file__).parents[1] / "golden" / "protocol"
FIT = ProbeTraining(
    epochs=12, batch_size=16, num_clips=4, learning_rates=(3e-3,), encoder_lr_scales=(1.0,),
    head_learning_rates=(3e-2,),
)  # fmt: skip
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


def test_centring_makes_knn_blind_to_a_shift_of_all_videos() -> None:
    task = class_task(1.0)
    rows: Any = (("backbone", "knn"),)
    plain, centred = (
        run_probes(task, None, replace(QUICK, centre=centre), rows=rows)[0]
        for centre in (False, True)
    )
    assert plain.settings["centre"] is False
    assert centred.settings["centre"] is True
    assert abs(plain.value - centred.value) < 0.2


def test_transformers_may_classify_by_the_set_token_alone() -> None:
    config = replace(QUICK, training=replace(QUICK.training, epochs=30, set_token_only=True))
    rows: Any = (("backbone", "transformer"), ("scale", "finetune"))
    for result in run_probes(class_task(8.0), small_model(), config, rows=rows):
        assert result.value > 0.9, result.probe
    probe = SetProbe(small_model().encoder, 7, frozen=False, set_token_only=True)
    assert probe(class_task(1.0).train.random).shape == (70, 1, 7)
    assert probe.classify.in_features == TINY.width


def test_every_probe_finds_numbers_that_are_there() -> None:
    long_enough = replace(QUICK, training=replace(QUICK.training, epochs=30))
    results = run_probes(regression_task(8.0), small_model(), long_enough, rows=ALL_ROWS)
    for result in results:
        assert result.metric == "mse"
        assert result.value < 0.5 * result.chance_level, result.probe
        assert result.interval[0] <= result.value <= result.interval[1]
        r2 = result.metrics["r2"]
        assert r2 is not None
        assert r2 > 0.5
        assert result.confusion is None


def test_no_probe_finds_numbers_that_are_not_there() -> None:
    for result in run_probes(regression_task(0.0), small_model(), QUICK, rows=ALL_ROWS):
        assert result.value > 0.8 * result.chance_level, result.probe


def test_errors_are_on_the_scale_of_the_targets() -> None:
    rows: Any = (("backbone", "linear"), ("backbone", "ordered"), ("backbone", "knn"))
    small, large = (
        run_probes(regression_task(2.0, scale=scale), None, QUICK, rows=rows) for scale in (1, 10)
    )
    for one, ten in zip(small, large, strict=True):
        assert ten.value == pytest.approx(100 * one.value, rel=1e-2)


def test_the_clips_in_order_tell_what_their_mean_cannot() -> None:
    """The class is when something happens: its mean over time says nothing."""
    generator = Generator().manual_seed(0)
    labels = torch.arange(120) % 4
    features = torch.randn(120, 8, 12, generator=generator) * 0.3
    features[torch.arange(120), labels * 2, 0] += 3.0
    clips = ClipBatch(features, torch.rand(120, 8, 6, generator=generator))
    first, rest = torch.arange(80), torch.arange(80, 120)
    task = EvaluationTask(
        tuple("abcd"),
        LabelledVideos(clips.of(first), clips.of(first), labels[first], (None,) * 80),
        HeldOut(tuple(map(str, range(40))), clips.of(rest), labels[rest]),
    )
    rows: Any = (("backbone", "ordered"), ("backbone", "linear"))
    suite = run_suite(task, None, QUICK, rows=rows)
    ordered, linear = (result.value for result in suite.results)
    assert ordered > 0.95
    assert linear < 0.5
    against = next(c for c in suite.comparisons if c.probe == "linear")
    assert against.baseline_probe == "ordered"
    assert against.interval[1] < 0
    assert against.p < 0.01


@pytest.mark.parametrize("channels", [5, 300], ids=["fewer than videos", "more than videos"])
def test_ridge_is_that_of_scikit_learn_with_few_and_with_many_channels(channels: int) -> None:
    generator = Generator().manual_seed(0)
    train, queries = (torch.randn(n, channels, generator=generator) for n in (60, 9))
    wanted = torch.randn(60, generator=generator)
    train, queries = standardise(train, queries)
    ours = OurRidge(train, wanted, 1)
    found = ours.predict(ours.fit(0.1), queries, 1.0)[:, 0]
    alpha = 0.1 * float(ours.square.diagonal().mean())
    theirs = Ridge(alpha=alpha).fit(train.double(), wanted.double()).predict(queries.double())
    np.testing.assert_allclose(found.numpy(), theirs, atol=1e-4)


def test_ridge_with_far_more_channels_than_videos_is_solved_by_its_videos() -> None:
    generator = Generator().manual_seed(0)
    labels = torch.arange(40) % 4
    train = torch.randn(40, 5000, generator=generator)
    train[:, :4] += 40 * torch.eye(4)[labels]
    chosen = choose_ridge(
        train[:30], labels[:30], train[30:], labels[30:], outputs=4, penalties=(0.1, 1.0)
    )
    layer = solve_ridge(train, labels, outputs=4, penalty=chosen[0], sharpness=chosen[1])
    known = (train - layer["mean"]) / layer["scale"]
    found = (known @ layer["weight"] + layer["bias"]).softmax(dim=1)
    assert OurRidge(train, labels, 4).square.shape == (40, 40)
    assert (found.argmax(dim=1) == labels).all()
    torch.testing.assert_close(found.sum(dim=1), torch.ones(40))


def test_records_say_what_was_chosen_among_how_many() -> None:
    config = replace(QUICK, num_seeds=1, training=replace(FIT, head_learning_rates=(1e-2, 3e-2)))
    results = run_probes(class_task(2.0), small_model(), config)
    tried = {(r.features, r.probe): r.num_candidates for r in results}
    assert tried["backbone", "linear"] == 4
    assert tried["backbone", "ordered"] == 5
    for result in results:
        assert "test" not in result.selected_on
        top1, top5 = result.metrics["top1"], result.metrics["top5"]
        assert top1 is not None
        assert top5 is not None
        assert top1 <= top5 <= 1.0
        assert result.metrics["mean_class"] == pytest.approx(top1)  # classes are of equal size


def test_a_named_validation_split_is_chosen_by_and_not_learned_from() -> None:
    task = class_task(2.0)
    named = class_task(2.0, train=21).train
    with_named = replace(task, validation=named)
    results = run_probes(with_named, small_model(), QUICK, rows=ALL_ROWS)
    assert {r.selected_on for r in results if r.probe != "knn"} == {
        "the 21 videos of the split 'val'"
    }


def test_videos_of_the_choice_are_learned_from_only_in_a_refit() -> None:
    task = class_task(2.0)
    check = divide(task.train, FIT, 0).check
    assert check is not None
    features = task.train.random.features.clone()
    features[check] = 0.0
    other = replace(
        task,
        train=replace(task.train, random=ClipBatch(features, task.train.random.boxes)),
    )
    rows: Any = (("backbone", "linear"),)
    for refit in (True, False):
        config = replace(QUICK, num_seeds=1, training=replace(FIT, refit=refit))
        one, two = (run_suite(each, None, config, rows=rows) for each in (task, other))
        found = (each.predictions.outputs[rows[0]] for each in (one, two))
        assert np.allclose(*found, atol=1e-6) is not refit


def test_the_pre_trained_part_learns_at_its_share_of_the_rate() -> None:
    task = class_task(2.0)
    encoder = small_model().encoder

    def moved(share: float) -> tuple[float, float]:
        run = NetworkRun(
            lambda: SetProbe(small_model().encoder, 7, frozen=False),
            task.train, FIT, rate=1e-3, share=share, epochs=2, seed=0,
        )  # fmt: skip
        network = run.network
        assert isinstance(network, SetProbe)
        before = network.classify.weight.detach().clone()
        run.run_epoch()
        return (
            (network.encoder.project.weight - encoder.project.weight).abs().max().item(),
            (network.classify.weight - before).abs().max().item(),
        )

    full, gentle = moved(1.0), moved(0.01)
    assert gentle[0] < 0.05 * full[0]
    assert gentle[1] > 0.5 * full[1]


def test_the_share_of_the_rate_is_chosen_on_videos_set_aside() -> None:
    task, encoder = class_task(2.0), small_model().encoder
    chosen = choose(
        lambda: SetProbe(encoder, 7, frozen=False), task.train, FIT, rates=(1e-3, 3e-3), seed=0,
        shares=(0.1, 1.0),
    )  # fmt: skip
    assert chosen.share in (0.1, 1.0)
    assert chosen.tried == 4


def test_a_training_that_may_not_stop_early_runs_all_its_epochs() -> None:
    task = class_task(5.0)  # so easy that the first epochs are as good as the last
    late = replace(FIT, early_stopping=False)

    def chosen(fit: ProbeTraining, *rates: float) -> Choice:
        def make() -> SetProbe:
            return SetProbe(small_model().encoder, 7, frozen=False)

        return choose(make, task.train, fit, rates=rates, seed=0)

    assert chosen(late, 1e-3, 3e-3).epochs == FIT.epochs
    assert chosen(late, 1e-9, 3e-3).rate == 3e-3  # rates are still chosen, by what they end at
    assert chosen(late, 3e-3).selected_on.startswith("nothing")  # and nothing is tried in vain
    assert not chosen(FIT, 3e-3).selected_on.startswith("nothing")
    config = replace(QUICK, num_seeds=1, rows=("linear", "mlp", "finetune"), training=late)
    *heads, tuned = run_probes(task, small_model(), config)
    assert [head.epochs for head in heads] == [12, 12]
    assert (tuned.epochs, tuned.selected_on) == (12, "nothing: one setting, all epochs")


def test_low_shot_labels_are_those_of_the_published_protocol() -> None:
    golden = json.loads((GOLDEN / "low_shot_subset.json").read_text())
    labels = golden["labels"]
    clips = clips_of(len(labels), torch.arange(len(labels)), 0)
    task = EvaluationTask(
        ("a", "b"),
        LabelledVideos(clips, clips, torch.tensor(labels), (None,) * len(labels)),
        HeldOut((), clips.of(torch.arange(0)), torch.zeros(0, dtype=torch.int64)),
    )
    for share in (0.1, 0.25):
        few = keep_few(task, share=share, count=None, seed=None)
        expected = golden[f"fraction_{share}"]
        assert torch.equal(few.train.random.features, clips.features[expected])
        assert subset_indices(labels, fraction=share) == expected


def test_each_seed_draws_its_own_few_labels_and_the_record_says_how_many() -> None:
    config = replace(QUICK, num_seeds=3, shots=2)
    rows: Any = (("backbone", "knn"), ("backbone", "ordered"), ("backbone", "linear"))
    suite = run_suite(class_task(1.0), None, config, rows=rows)
    for result in suite.results:
        assert result.seeds == (0, 1, 2)
        assert result.settings["labels"] == "14 of 70 training labels"
        outputs = suite.predictions.outputs[result.features, result.probe]
        assert not np.allclose(outputs[0], outputs[1])
    first = run_probes(class_task(1.0), None, replace(config, first_shots=True), rows=rows[:1])
    assert len(set(first[0].seeds)) == 3


def test_probes_may_also_learn_from_the_regular_clips() -> None:
    task = class_task(2.0)
    both = task.train.with_all_clips()
    assert both.random.features.shape[1] == 16
    config = replace(QUICK, num_seeds=1, training=replace(FIT, train_clips="all"))
    results = run_probes(task, small_model(), config)
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


def test_videos_may_be_judged_by_their_random_clips_too_but_not_in_order() -> None:
    """What tells the classes apart is seen in random clips alone."""
    task = class_task(0.0)
    random = class_task(5.0).train.random
    held = class_task(5.0).test.clips
    truth = torch.arange(42) % 7
    test = HeldOut(task.test.ids, task.test.clips, truth, random=lambda: held)
    train = replace(task.train, random=random)
    hidden = replace(task, train=train, test=test)
    rows: Any = ("knn", "scale_knn", "linear", "scale_linear", "finetune", "ordered")

    def scores(judge_by: Any, regular_too: bool) -> dict[str, float]:
        fit = replace(FIT, regular_too=regular_too)
        config = replace(QUICK, num_seeds=1, test_clips=judge_by, rows=rows, training=fit)
        found = run_probes(hidden, small_model(), config)
        return {f"{each.features} {each.probe}": each.value for each in found}

    for regular_too in (False, True):
        alone, together = scores("regular", regular_too), scores("all", regular_too)
        assert alone.pop("backbone ordered") == together.pop("backbone ordered") < 0.4
        assert max(alone.values()) < 0.5 < min(together.values())
    with pytest.raises(ProbeError, match="no random clips"):
        run_probes(task, None, replace(QUICK, test_clips="all"))


def test_with_mixed_means_a_transformer_learns_less_from_what_never_changes_in_a_video() -> None:
    (known, labels), (held, truth) = (
        confounded(80, 1, misleading=False), confounded(60, 2, misleading=True)
    )  # fmt: skip
    task = EvaluationTask(
        ("left", "right"),
        LabelledVideos(known, known, labels, (None,) * 80),
        HeldOut(tuple(map(str, range(60))), held, truth),
    )
    fit = replace(FIT, epochs=40, num_clips=8, set_token_only=True, refit=False)
    plain, mixed = (
        run_probes(
            task, small_model(), replace(QUICK, num_seeds=1, training=replace(fit, mix_means=mix)),
            rows=(("scale", "finetune"),),
        )[0].value
        for mix in (False, True)
    )  # fmt: skip
    assert mixed > plain + 0.3


def test_one_video_of_each_class_is_learned_from_without_a_choice() -> None:
    task = class_task(8.0, train=7)
    for result in run_probes(task, small_model(), QUICK, rows=ALL_ROWS):
        assert result.selected_on.startswith("nothing")
        if result.probe not in ("transformer", "finetune"):  # twelve steps are too few for those
            assert result.value > 2 / 7, result.probe  # twice what guessing reaches


def test_a_model_of_another_backbone_is_refused() -> None:
    torch.manual_seed(0)
    with pytest.raises(ProbeError, match=r"have 12 channels, the model takes 20; .*another"):
        run_probes(class_task(1.0), ScaleModel(20, TINY), QUICK)


def test_rows_that_need_a_model_are_refused_without_one() -> None:
    with pytest.raises(ProbeError, match="need a trained model"):
        run_probes(class_task(1.0), None, replace(QUICK, rows=("scale_knn",)))


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"seeds": 0}, "at least 1"),
        ({"rows": ()}, "at least one"),
        ({"rows": ("knn", "knn")}, "each probe once"),
        ({"low_shot": 1.5}, "up to 1"),
        ({"low_shot": 0.1, "shots": 3}, "not both"),
        ({"shots": 0}, "at least 1"),
    ],
)
def test_settings_that_make_no_sense_are_refused(setting: Any, message: str) -> None:
    with pytest.raises(ProbeError, match=message):
        EvaluateConfig(**setting)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"epochs": 0}, "epochs must be at least 1"),
        ({"rates": ()}, "rates must name at least one"),
        ({"head_rates": (0.0,)}, "more than 0"),
        ({"dropouts": (1.0,)}, "less than 1"),
        ({"validation": 1.0}, "between 0 and 1"),
        ({"halvings": -1}, "at least 0"),
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
    assert "6 of 24 videos have no label: passed over" in capfd.readouterr().err


def test_all_clips_of_a_stored_video_are_its_random_and_its_regular_ones(
    small_store: FeatureStore,
) -> None:
    task = make_task(small_store)
    more = task.judged_by_all()
    assert more.test.ids == task.test.ids
    counts = [clips.features.shape[1] for clips in (task.train.random, task.test.clips)]
    assert more.test.clips.features.shape[1] == sum(counts)
    assert torch.equal(more.test.clips.features[:, counts[0] :], task.test.clips.features)


def test_targets_pose_a_problem_of_numbers(small_store: FeatureStore) -> None:
    catalog = with_facts(small_store, label=lambda *_: None, target=lambda place, _: float(place))
    task = make_task(small_store, catalog)
    assert task.classes == ()
    assert task.outputs == 1
    assert task.train.targets is not None
    result = run_probes(task, None, QUICK, rows=(("backbone", "ordered"),))[0]
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
    with pytest.raises(ProbeError, match=r"no training video shows 'new blue' \(and 2 more\)"):
        make_task(small_store, catalog)


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
