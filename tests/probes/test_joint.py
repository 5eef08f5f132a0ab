"""Pre-training goes on beside fine-tuning."""

from __future__ import annotations

import copy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Generator

from clipset.errors import ProbeError
from clipset.evaluation.suite import run_suite
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.probes.registry import probe_key
from clipset.probes.task import make_task
from clipset.probes.transformer import SetClassifier, TransformerSettings, TransformerTraining
from clipset.training.checkpoint import ScaleModel
from clipset.training.config import PretrainConfig
from clipset.training.distributed import SINGLE_PROCESS
from clipset.training.joint import JointPretraining, PretrainingSetup
from clipset.training.pretrain import pretrain

TRAINING = PretrainConfig(
    model=ModelConfig(
        width=32, num_layers=1, projection_hidden=(32, 32), projection_dim=16, dropout=0.0
    ),
    epochs=30,
    batch_size=16,
    clips_per_set=4,
)
FIT = ProbeTraining(
    ordered_weights=(0.0,),
    epochs=8,
    batch_sizes=(8,),
    num_clips=4,
    learning_rates=(3e-3,),
    encoder_lr_scales=(1.0,),
    early_stopping=False,
    joint_weight=0.1,
)
PROBES: Any = ("finetune",)


@pytest.fixture(scope="module")
def model(small_store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> ScaleModel:
    return pretrain(small_store, tmp_path_factory.mktemp("model"), TRAINING)


@pytest.fixture
def joint(small_store: FeatureStore, model: ScaleModel) -> JointPretraining:
    return PretrainingSetup(small_store, TRAINING).open(model, batch_size=6)


def test_the_losses_are_those_of_pretraining_batch_after_batch(joint: JointPretraining) -> None:
    model = joint.model
    joint_loss = joint.start(copy.deepcopy(model.encoder), seed=3)
    found = [joint_loss.loss().item() for _ in range(5)]
    generator, wanted = Generator().manual_seed(3), []
    while len(wanted) < 5:  # 18 videos: three batches in an epoch
        for size, pair in joint.source.batches(joint.config, generator, SINGLE_PROCESS):
            assert size == 6
            wanted.append(model.losses(pair.features, pair.boxes, pair.masked).total.item())
    assert found == pytest.approx(wanted[:5], rel=1e-5)


def test_the_encoder_is_shared_and_the_model_that_was_given_stays_as_it_is(
    joint: JointPretraining,
) -> None:
    before = copy.deepcopy(joint.model.state_dict())
    encoder = copy.deepcopy(joint.model.encoder)
    joint_loss = joint.start(encoder, seed=0)
    mine = {id(weight) for weight in encoder.parameters()}
    assert joint_loss.heads
    assert not mine & {id(weight) for weight in joint_loss.heads}
    optimiser = torch.optim.SGD([*encoder.parameters(), *joint_loss.heads], lr=0.1)
    joint_loss.loss().backward()
    optimiser.step()
    assert not torch.equal(encoder.project.weight, before["encoder.project.weight"])
    for name, value in joint.model.state_dict().items():
        assert torch.equal(value, before[name]), name


def test_joint_pretraining_keeps_the_pretraining_loss_low(
    small_store: FeatureStore, joint: JointPretraining
) -> None:
    train = make_task(small_store).train

    def tune(weight: float) -> float:
        torch.manual_seed(0)
        network = SetClassifier(copy.deepcopy(joint.model.encoder), 3)
        run = TransformerTraining(
            network, train, replace(FIT, joint_weight=weight),
            TransformerSettings(learning_rate=1e-2, weight_decay=1e-2, batch_size=8),
            num_epochs=30, seed=0, joint=joint if weight else None,
        )  # fmt: skip
        for _ in range(30):
            run.run_epoch()
        joint_loss = run.joint_loss or joint.start(run.network.encoder, seed=0)
        joint_loss.model.eval()
        with torch.inference_mode():
            return sum(joint_loss.loss().item() for _ in range(9))

    assert tune(1.0) < 0.9 * tune(0.0)


def test_joint_pretraining_sees_all_training_videos_and_no_test_video(
    small_store: FeatureStore, model: ScaleModel
) -> None:
    task = make_task(small_store, training=TRAINING)
    few = task.subsample_labels(0.1, seed=0)
    assert len(few.train) == 3
    assert few.pretraining is not None
    places = few.pretraining.open(model, batch_size=128).source.videos
    assert len(places) == len(task.train) == 18
    assert not {small_store.ids[place] for place in places} & set(task.test.ids)
    config = EvaluateConfig(num_seeds=1, label_fraction=0.1, training=FIT)
    [result] = run_suite(task, model, config, probes=PROBES).results
    assert result.value > 0.5


def test_the_splits_of_the_task_decide_what_joint_pretraining_sees(
    small_store: FeatureStore, model: ScaleModel
) -> None:
    own = {video.id: video.split for video in small_store.catalog}
    swapped = [  # six videos that the store calls train are the test now
        replace(video, split="test" if place < 6 else "train")
        for place, video in enumerate(
            sorted(small_store.catalog, key=lambda v: own[v.id] == "test")
        )
    ]
    task = make_task(small_store, small_store.catalog.only(swapped), training=TRAINING)
    assert {own[id] for id in task.test.ids} == {"train"}
    assert task.pretraining is not None
    source = task.pretraining.open(model, batch_size=128).source
    ids = {task.pretraining.store.ids[place] for place in source.videos}
    assert len(ids) == 18
    assert not ids & set(task.test.ids)


def test_only_fine_tuning_has_joint_pretraining(
    small_store: FeatureStore, model: ScaleModel
) -> None:
    task = make_task(small_store, training=TRAINING)
    names: Any = ("transformer", "finetune")
    outputs = [
        run_suite(
            task,
            model,
            EvaluateConfig(num_seeds=1, training=replace(FIT, joint_weight=weight)),
            probes=names,
        ).predictions.outputs
        for weight in (0.0, 0.1)
    ]
    plain, joint = outputs
    transformer, finetune = (probe_key(name) for name in names)
    assert (plain[transformer] == joint[transformer]).all()
    assert (plain[finetune] != joint[finetune]).any()


def test_joint_pretraining_needs_the_settings_of_pretraining(
    small_store: FeatureStore, model: ScaleModel
) -> None:
    config = EvaluateConfig(num_seeds=1, training=FIT)
    with pytest.raises(ProbeError, match="joint_weight continues pre-training"):
        run_suite(make_task(small_store), model, config, probes=PROBES)
    for wrong in ({"joint_weight": -1.0}, {"joint_weight": float("inf")}):
        with pytest.raises(ProbeError, match="joint_weight"):
            replace(FIT, **wrong)


def test_the_folder_of_a_model_says_how_it_was_trained(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    from clipset.training.checkpoint import read_card, training_settings

    config = replace(TRAINING, preset="paper", epochs=1, model=replace(TRAINING.model, width=64))
    pretrain(small_store, tmp_path, config)
    assert training_settings(read_card(tmp_path)) == config
