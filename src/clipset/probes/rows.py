"""How each row of the table is made: from a problem to predictions for its test videos."""

from __future__ import annotations

import copy
from dataclasses import replace

from clipset.errors import ProbeError
from clipset.model.scale import make_encoder
from clipset.probes.fit import Network, choose, fit, predict
from clipset.probes.head_rows import train_heads
from clipset.probes.job import Job, Outcome
from clipset.probes.knn import knn_numbers, knn_probabilities
from clipset.probes.networks import SetProbe
from clipset.probes.results import Row
from clipset.probes.selection import count_epochs
from clipset.probes.solved_rows import solve_classifier
from clipset.representation import encode_clips
from clipset.sets.clips import clip_statistics, feature_statistics, mean_over_clips


def run_row(job: Job, row: Row) -> Outcome:
    """The predictions of one row; of a backbone's features alone, each clip with all of them."""
    if row[0] == "backbone" and row[1] != "transformer":
        job = replace(job, problem=job.problem.side_by_side)
    if row[1] == "knn":
        return _knn(job, row)
    if row[1] in ("linear", "mlp", "attentive"):
        return train_heads(job, row)
    if row[1] in ("ordered", "logistic"):
        return solve_classifier(job, row)
    return _network(job, row)


def _knn(job: Job, row: Row) -> Outcome:
    problem, config = job.problem, job.config
    train, test = problem.train.regular, problem.test.clips
    if row[0] == "backbone":  # like for like: the encoder standardises, too
        mean, std = feature_statistics(problem.train.random.only_present())
        bank, queries = (
            mean_over_clips((each.features - mean) / std, each.present) for each in (train, test)
        )
    else:
        encoder = job.trained_encoder()
        bank, queries = (
            mean_over_clips(encode_clips(encoder, each), each.of_one.present)
            for each in (train, test)
        )
    if config.centre:
        middle = bank.mean(dim=0)
        bank, queries = bank - middle, queries - middle
    if problem.train.targets is None:
        classes = problem.train.classes
        found = knn_probabilities(bank, classes, queries, class_count=problem.outputs, k=config.k)
    else:
        found = knn_numbers(bank, problem.train.targets, queries, k=config.k)
    return Outcome(
        predictions=[found],
        seeds=job.seeds[:1],
        selected_on="nothing: k is fixed",
        settings={"k": config.k, "centre": config.centre},
    )


def _network(job: Job, row: Row) -> Outcome:
    """Choose rate and epochs, train again on all training videos with each seed, predict."""
    config, train, parts = job.config.fit, job.problem.train, job.divide()
    make = _from_scratch(job) if row[1] == "transformer" else _pretrained(job, row)
    chosen = choose(
        make, train, config, rates=config.rates, seed=job.seeds[0], parts=parts,
        shares=config.encoder_shares if row[1] == "finetune" else (1.0,),
        check=job.problem.validation,
    )  # fmt: skip
    final = train if config.refit else train.only(parts.learn)
    epochs = count_epochs(len(train), config, config.tuned_steps)
    found = []
    for seed in job.seeds:
        network = fit(
            make, final, config, rate=chosen.rate, epochs=chosen.epochs, seed=seed,
            share=chosen.share, schedule=epochs,
        )  # fmt: skip
        found.append(predict(network, job.problem.test.clips, numbers=job.numbers))
    return Outcome(
        predictions=found,
        seeds=job.seeds,
        selected_on=chosen.selected_on,
        rate=chosen.rate,
        epochs=chosen.epochs,
        settings={"encoder_share": chosen.share, "decay": config.weight_decay},
        tried=chosen.tried,
    )


def _pretrained(job: Job, row: Row) -> Network:
    encoder = job.trained_encoder()
    if row != ("scale", "finetune"):
        raise ProbeError(f"there is no probe {row[1]!r} on {row[0]!r} features")
    outputs, set_only = job.problem.outputs, job.config.fit.set_only
    return lambda: SetProbe(copy.deepcopy(encoder), outputs, frozen=False, set_only=set_only)


def _from_scratch(job: Job) -> Network:
    """The same architecture as the pre-trained one, from a random start."""
    dim = job.problem.train.random.features.shape[-1]
    statistics = clip_statistics(job.problem.train.random)

    def make() -> SetProbe:
        encoder = make_encoder(dim, job.model)
        encoder.standardise_by(*statistics)
        set_only = job.config.fit.set_only
        return SetProbe(encoder, job.problem.outputs, frozen=False, set_only=set_only)

    return make
