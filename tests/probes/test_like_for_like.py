"""Rows of a table differ by one thing: laws that hold with the settings of every preset."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from clipset.data.catalog import Catalog, Video
from clipset.evaluation.suite import SuiteResult, run_suite
from clipset.features.importers import import_features
from clipset.features.store import FeatureStore
from clipset.model.encoder import SetEncoder
from clipset.presets import PRESETS
from clipset.probes.base import Selection
from clipset.probes.config import EvaluateConfig, ProbeName
from clipset.probes.finetune import FinetuneProbe
from clipset.probes.inputs import VideoInputs, set_token_weight
from clipset.probes.registry import probe_key
from clipset.probes.task import EvaluationTask, make_task
from clipset.probes.transformer import TransformerProbe, TransformerSettings
from clipset.recipe import load_settings
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig
from clipset.training.pretrain import open_clip_source

CLASSES, TRAIN, TEST, NUM_CLIPS, DIM, SEED = 4, 56, 40, 8, 12, 3


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    """Raw features as backbones give them: channels of different scale, far from the origin."""
    folder = tmp_path_factory.mktemp("like_for_like")
    rng = np.random.default_rng(0)
    scales, offset = np.geomspace(0.1, 10.0, DIM), 5.0 * rng.random(DIM)
    class_means = rng.standard_normal((CLASSES, DIM))
    videos = []
    for number in range(TRAIN + TEST):
        label = number % CLASSES
        clips = 0.7 * class_means[label] + rng.standard_normal((NUM_CLIPS, DIM))
        path = folder / "features" / f"{number}.npy"
        path.parent.mkdir(exist_ok=True)
        np.save(path, (clips * scales + offset).astype(np.float32))
        split = "train" if number < TRAIN else "test"
        videos.append(Video(id=str(number), path=path, label="abcd"[label], split=split))
    catalog = Catalog(name="made up", videos=tuple(videos))
    return import_features(folder / "features", folder / "store", catalog)


def untrained_model(store: FeatureStore, preset: str, seed: int) -> tuple[ScaleModel, Any]:
    """A model before its first step, with the architecture and statistics of a preset."""
    small = {"width": 32, "num_layers": 1}
    config = load_settings(PretrainConfig, preset, model=small)
    torch.manual_seed(seed)
    model = ScaleModel(DIM, config.model)
    if config.standardise:
        train = np.array([i for i, id in enumerate(store.ids) if int(id) < TRAIN])
        source = open_clip_source(store, train, config)
        model.encoder.set_statistics(source.mean, source.std)
    return model, config


def preset_config(
    preset: str, *, epochs: int = 3, ordered_weight: float = 0.0, **changes: Any
) -> EvaluateConfig:
    """The preset's own search, but short."""
    config = load_settings(EvaluateConfig, preset, mlp_hidden=16, num_seeds=2)
    training = replace(
        config.training, epochs=epochs, num_clips=4, ordered_weights=(ordered_weight,)
    )
    return replace(config, training=training, **changes)


def evaluate(
    task: EvaluationTask, model: ScaleModel, config: EvaluateConfig, *names: ProbeName
) -> SuiteResult:
    return run_suite(task, model, config, seed=SEED, probes=names)


def outputs_of(suite: SuiteResult, name: ProbeName) -> np.ndarray:
    return suite.predictions.outputs[probe_key(name)]


def without_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    encode_subset = SetEncoder.encode_subset

    def zero(self: SetEncoder, *inputs: Any) -> tuple[Tensor, Tensor]:
        clip_tokens, set_token = encode_subset(self, *inputs)
        return torch.zeros_like(clip_tokens), torch.zeros_like(set_token)

    monkeypatch.setattr(SetEncoder, "encode_subset", zero)


@pytest.mark.parametrize(
    ("preset", "pair"),
    [
        *((preset, ("linear", "scale_linear")) for preset in PRESETS),
        *((preset, ("knn", "scale_knn")) for preset in PRESETS),
        ("recommended", ("course_knn", "scale_course_knn")),
        ("recommended", ("ordered", "scale_ordered")),
    ],
)
def test_without_tokens_a_scale_row_is_its_baseline(
    store: FeatureStore, preset: str, pair: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, training = untrained_model(store, preset, SEED)
    task = make_task(store, None, training.model, training)
    config = preset_config(preset, epochs=12)  # enough for the lowest learning rate to matter
    suite = evaluate(task, model, config, *pair)
    assert np.abs(np.subtract(*(outputs_of(suite, name) for name in pair))).max() > 1e-3
    without_tokens(monkeypatch)
    suite = evaluate(task, model, config, *pair)
    baseline, scale = suite.results
    assert baseline.value == scale.value
    assert baseline.settings == scale.settings
    assert (baseline.epochs, baseline.num_candidates) == (scale.epochs, scale.num_candidates)
    one, two = (outputs_of(suite, name) for name in pair)
    assert (one.argmax(axis=-1) == two.argmax(axis=-1)).all()
    np.testing.assert_allclose(one, two, atol=1e-6, rtol=0)


@pytest.mark.parametrize("preset", PRESETS)
def test_fine_tuning_an_untrained_encoder_is_the_transformer_row(
    store: FeatureStore, preset: str
) -> None:
    config = preset_config(preset, num_seeds=1)
    names: tuple[ProbeName, ProbeName] = ("transformer", "finetune")
    for seed, same in ((SEED, True), (SEED + 1, False)):
        model, training = untrained_model(store, preset, seed)
        suite = evaluate(make_task(store, None, training.model, training), model, config, *names)
        transformer, finetune = suite.results
        assert transformer.num_candidates == finetune.num_candidates
        outputs = [outputs_of(suite, name) for name in names]
        assert np.array_equal(*outputs) is same
        if same:
            assert transformer.settings == finetune.settings
            assert (transformer.value, transformer.epochs) == (finetune.value, finetune.epochs)


def test_transformers_are_mixed_with_the_row_of_the_same_features(store: FeatureStore) -> None:
    model, training = untrained_model(store, "recommended", SEED)
    task = make_task(store, None, training.model, training)
    config = preset_config("recommended", num_seeds=1, ordered_weight=1.0)
    pairs: tuple[tuple[ProbeName, ProbeName], ...] = (
        ("transformer", "ordered"), ("finetune", "scale_ordered"),
    )  # fmt: skip
    suite = evaluate(task, model, config, *pairs[0], *pairs[1])
    for mixed, row in pairs:
        np.testing.assert_allclose(outputs_of(suite, mixed), outputs_of(suite, row), atol=1e-6)
    assert not np.allclose(outputs_of(suite, "ordered"), outputs_of(suite, "scale_ordered"))


@pytest.mark.parametrize("label_fraction", [None, 0.5])
def test_with_several_pretrainings_fine_tuning_takes_the_weight_of_the_transformer(
    store: FeatureStore, label_fraction: float | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One search of the transformer for each set of training labels, whatever the models."""
    models = []
    for seed in (SEED, SEED + 1, SEED + 2):
        model, training = untrained_model(store, "recommended", seed)
        models.append(model)
    searches: list[int] = []
    weights: list[float] = []
    score_weights = TransformerProbe.select_ordered_weight

    def select(self: TransformerProbe, settings: TransformerSettings) -> float:
        score_weights(self, settings)
        searches.append(self.setup.seed)
        return (0.25, 0.5, 0.75)[len(searches) - 1]

    fit = FinetuneProbe.fit

    def note_weight(self: FinetuneProbe, selection: Selection, *inputs: Any) -> nn.Module:
        weights.append(selection.settings.ordered_weight)
        return fit(self, selection, *inputs)

    monkeypatch.setattr(TransformerProbe, "select_ordered_weight", select)
    monkeypatch.setattr(FinetuneProbe, "fit", note_weight)
    task = make_task(store, None, training.model, training)
    config = preset_config("recommended", epochs=1, num_seeds=3, label_fraction=label_fraction)
    config = replace(config, training=replace(config.training, ordered_weights=(0.0, 0.5)))
    suite = run_suite(
        task, models[0], config, seed=SEED, probes=("transformer", "finetune"),
        more_models=models[1:],
    )  # fmt: skip
    assert suite.results[0].settings["ordered_weight"] == 0.25
    drawn = label_fraction is not None
    assert searches == ([SEED, SEED + 1, SEED + 2] if drawn else [SEED])
    assert weights == ([0.25, 0.5, 0.75] if drawn else [0.25] * 3)


def test_k_nn_is_that_of_the_paper(store: FeatureStore) -> None:
    """Mean raw features, L2-normalised; 20 neighbours vote with exp(cosine / 0.07)."""
    model, training = untrained_model(store, "paper", SEED)
    task = make_task(store, None, training.model, training)
    suite = evaluate(task, model, preset_config("paper"), "knn", "scale_knn")
    train, test = task.train.regular, task.test.clips
    labels = F.one_hot(task.train.classes).double()

    def votes(bank: Tensor, queries: Tensor) -> np.ndarray:
        cosines = F.normalize(queries, dim=1) @ F.normalize(bank, dim=1).T
        nearest = cosines.double().topk(20, dim=1)
        weights = (nearest.values / 0.07).exp()
        summed = (weights[..., None] * labels[nearest.indices]).sum(dim=1)
        return (summed / summed.sum(dim=1, keepdim=True)).numpy()

    def with_token(clips: Any) -> Tensor:
        with torch.inference_mode():
            token = model.eval().encoder(clips.features, clips.boxes).set_token
        return torch.cat([clips.features.mean(dim=1), token], dim=1)

    plain = votes(train.features.mean(dim=1), test.features.mean(dim=1))
    np.testing.assert_allclose(outputs_of(suite, "knn")[0], plain, atol=1e-5)
    scale = votes(with_token(train), with_token(test))
    np.testing.assert_allclose(outputs_of(suite, "scale_knn")[0], scale, atol=1e-5)


def test_by_default_the_set_token_of_k_nn_varies_half_as_much_as_the_features(
    store: FeatureStore,
) -> None:
    model, training = untrained_model(store, "recommended", SEED)
    clips = make_task(store, None, training.model, training).train.regular
    assert set_token_weight(model) == 0.5
    inputs = VideoInputs(model.encoder)
    plain, vectors = inputs.all_vectors(clips), inputs.balanced_vectors(clips, 0.5)
    torch.testing.assert_close(vectors[:, : clips.dim], plain[:, : clips.dim])
    features, token = vectors.var(dim=0).split([clips.dim, vectors.shape[1] - clips.dim])
    assert float(token.sum() / features.sum()) == pytest.approx(0.25, rel=1e-4)
    torch.testing.assert_close(inputs.all_vectors(clips), vectors)  # queries are scaled alike


def test_after_batches_of_one_group_the_set_token_weighs_as_much_as_the_features(
    store: FeatureStore,
) -> None:
    model, training = untrained_model(store, "recommended", SEED)
    task = make_task(store, None, training.model, training)
    scores = {}
    for batches in ("any videos", "one group each"):
        model.card = replace(model.card, batches=batches)
        suite = evaluate(task, model, preset_config("recommended"), "scale_knn")
        scores[batches] = outputs_of(suite, "scale_knn")
    assert set_token_weight(model) == 1.0
    assert np.abs(scores["any videos"] - scores["one group each"]).max() > 1e-3


@pytest.mark.parametrize("vectors", ["balanced", "mean", "centred"])
def test_both_k_nn_rows_scale_their_vectors_alike(
    store: FeatureStore, vectors: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, training = untrained_model(store, "recommended", SEED)
    task = make_task(store, None, training.model, training)
    without_tokens(monkeypatch)
    config = preset_config("recommended", knn_vectors=vectors)
    suite = evaluate(task, model, config, "knn", "scale_knn")
    assert [result.settings["vectors"] for result in suite.results] == [vectors] * 2
    one, two = (outputs_of(suite, name) for name in ("knn", "scale_knn"))
    np.testing.assert_allclose(one, two, atol=1e-6, rtol=0)
