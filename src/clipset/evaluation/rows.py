"""How each row of the table is made: from a task to predictions for its test videos."""

from __future__ import annotations

import copy

import torch
from jaxtyping import Int
from torch import Tensor, nn

from clipset.errors import ProbeError
from clipset.evaluation.classifiers import K, KNNClassifier, set_probe, vectors_of
from clipset.evaluation.fit import Network, choose, fit, predict
from clipset.evaluation.head_rows import plan_heads
from clipset.evaluation.job import Job, Outcome, Plan, every_video
from clipset.evaluation.networks import SetProbe
from clipset.evaluation.results import ProbeKey
from clipset.evaluation.selection import count_epochs
from clipset.evaluation.solved_rows import plan_solved
from clipset.model.encoder import SetEncoder
from clipset.sets.statistics import feature_statistics
from clipset.training.joint import JointPretraining

JOINT_BATCH_SIZE = 128  # videos in a batch of the pre-training beside fine-tuning, at most


def run_row(job: Job, row: ProbeKey) -> Outcome:
    """The predictions of one row for the test videos."""
    plan = plan_row(job, row)
    videos = every_video(job)
    seeds = job.seeds if plan.repeats else job.seeds[:1]
    clips = job.task.test.clips
    return Outcome(
        predictions=[predict(plan.fit(videos, seed), clips, numbers=job.numbers) for seed in seeds],
        seeds=seeds,
        selected_on=plan.selected_on,
        rate=plan.rate,
        epochs=plan.epochs,
        settings=plan.settings,
        tried=plan.tried,
    )


def plan_row(job: Job, row: ProbeKey) -> Plan:
    """All choices of one row."""
    if row.probe == "knn":
        return _plan_knn(job, row)
    if row.probe in ("linear", "mlp", "attentive"):
        return plan_heads(job, row)
    if row.probe == "ordered":
        return plan_solved(job, row)
    return _plan_network(job, row)


def _plan_knn(job: Job, row: ProbeKey) -> Plan:
    train, encoder = job.task.train, job.encoder_for(row)
    bank = vectors_of(row, train.regular, encoder)
    mean, std = torch.zeros(bank.shape[1]), torch.ones(bank.shape[1])
    if encoder is None:  # like for like: the encoder standardises, too
        mean, std = feature_statistics(train.random.valid_features())

    def fit(videos: Int[Tensor, " B"], seed: int) -> KNNClassifier:  # noqa: ARG001
        known = {"bank": (bank[videos] - mean) / std, "wanted": train.wanted[videos]}
        tensors = known | {"mean": mean, "std": std}
        return KNNClassifier(row, tensors, encoder, job.task.outputs, K)

    settings = {"k": K}
    on = "nothing: k is fixed"
    return Plan(fit=fit, parts=job.divide(), selected_on=on, repeats=False, settings=settings)


def _plan_network(job: Job, row: ProbeKey) -> Plan:
    """Choose rate and epochs of a transformer that is trained as a whole."""
    config, train, parts = job.config.training, job.task.train, job.divide()
    make = _from_scratch(job) if row.probe == "transformer" else _pretrained(job, row)
    joint = None if row.probe == "transformer" else _joint_pretraining(job)
    chosen = choose(
        make, train, config, rates=config.learning_rates, seed=job.seeds[0], parts=parts,
        shares=config.encoder_lr_scales if row.probe == "finetune" else (1.0,),
        check=job.task.validation, joint=joint,
    )  # fmt: skip
    epochs = count_epochs(len(train), config, config.max_steps)

    def train_again(videos: Int[Tensor, " B"], seed: int) -> nn.Module:
        known = train if len(videos) == len(train) else train.only(videos)
        return fit(
            make, known, config, rate=chosen.rate, epochs=chosen.epochs, seed=seed,
            share=chosen.share, schedule=epochs, joint=joint,
        )  # fmt: skip

    return Plan(
        fit=train_again,
        parts=parts,
        selected_on=chosen.selected_on,
        rate=chosen.rate,
        epochs=chosen.epochs,
        settings={"encoder_lr_scale": chosen.share, "weight_decay": config.weight_decay},
        tried=chosen.tried,
    )


def _pretrained(job: Job, row: ProbeKey) -> Network:
    encoder = job.encoder_for(row)
    if encoder is None or row != ("scale", "finetune"):
        raise ProbeError(f"there is no probe {row.probe!r} on {row.features!r} features")
    return lambda: set_probe(copy.deepcopy(encoder), job.task.outputs, job.config.training)


def _joint_pretraining(job: Job) -> JointPretraining | None:
    """What pre-training goes on with beside fine-tuning, if it is to."""
    config, known = job.config.training, job.task.pretraining
    if not config.joint_weight or job.trained is None:
        return None
    if known is None:
        raise ProbeError(
            "joint_weight continues pre-training, whose settings are unknown here; "
            "give make_task its settings, or set evaluate.training.joint_weight=0"
        )
    return known.open(job.trained, batch_size=JOINT_BATCH_SIZE)


def _from_scratch(job: Job) -> Network:
    """The same architecture as the pre-trained one, from a random start."""
    dim = job.task.train.random.features.shape[-1]
    statistics = feature_statistics(job.task.train.random.valid_features())

    def make() -> SetProbe:
        encoder = SetEncoder(dim, job.model)
        encoder.set_statistics(*statistics)
        return set_probe(encoder, job.task.outputs, job.config.training)

    return make
