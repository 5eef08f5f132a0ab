"""The classifier of a run: chosen and calibrated on validation videos, trained on all, kept."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from clipset.backbones.checkpoints import first_nonfinite
from clipset.checksums import find_damage, seal
from clipset.config import build, encode_json, read_json, to_mapping, write_together
from clipset.errors import ClipsetError, ModelError, ProbeError
from clipset.evaluation.calibration import error_of, fit_temperature, temper
from clipset.evaluation.classifiers import KEPT, rebuild
from clipset.evaluation.config import EvaluateConfig, ProbeName
from clipset.evaluation.fit import predict
from clipset.evaluation.job import Job, Plan, default_shape, every_video
from clipset.evaluation.results import ProbeKey
from clipset.evaluation.rows import plan_row
from clipset.evaluation.selection import score
from clipset.evaluation.suite import ROW_OF
from clipset.evaluation.task import EvaluationTask, HeldOut, LabelledVideos
from clipset.model.config import ModelConfig
from clipset.progress import bar
from clipset.sets.batch import ClipBatch
from clipset.training.checkpoint import ScaleModel, load_file
from clipset.training.joint import PretrainingSetup

FORMAT = 3
UNBOUNDED = f"{KEPT}scale"  # infinite where a channel never changes, so that it has no say
PREFERRED = (
    ProbeKey("scale", "linear"),
    ProbeKey("scale", "attentive"),
    ProbeKey("backbone", "linear"),
    ProbeKey("backbone", "attentive"),
    ProbeKey("backbone", "mlp"),
    ProbeKey("scale", "finetune"),
    ProbeKey("backbone", "transformer"),
    ProbeKey("scale", "knn"),
    ProbeKey("backbone", "knn"),
    ProbeKey("backbone", "ordered"),
)  # of rows that are equally good, and where nothing can be chosen, the first of these


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one row of the table did on the validation videos, at its best settings."""

    features: str
    probe: str
    rate: float | None
    epochs: int | None
    right: float
    log_likelihood: float

    @property
    def score(self) -> tuple[float, int]:
        """What choices go by: more videos right; how sure a row is has to be calibrated anyway."""
        return self.right, -PREFERRED.index(ProbeKey(self.features, self.probe))


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCard:
    """What a head is, why it was chosen, and what it was trained on.

    `calibration_error` is that of the validation videos before and after the temperature.
    """

    features: str
    probe: str
    classes: tuple[str, ...]
    dim: int
    model: ModelConfig
    config: EvaluateConfig
    temperature: float
    calibration_error: tuple[float, float] | None
    selected_on: str
    trials: tuple[Trial, ...]
    videos: int
    seed: int
    fingerprint: str
    format: int = FORMAT

    @property
    def why(self) -> str:
        """Why this row of the table is the head."""
        mine = [t for t in self.trials if (t.features, t.probe) == (self.features, self.probe)]
        if not mine:
            return f"chosen on {self.selected_on}"
        right = f"{mine[0].right:.1%} right on {self.selected_on}"
        if len(self.trials) == 1:
            return f"the row that was asked for, {right}"
        return f"the best of {len(self.trials)} rows, {right}"


@dataclass(frozen=True, slots=True)
class Head:
    """A trained classifier with its card."""

    network: nn.Module
    card: HeadCard

    def predict(self, clips: ClipBatch) -> Float[Tensor, "M C"]:
        """The calibrated probability of every class."""
        return temper(predict(self.network, clips), self.card.temperature)


def list_rows(
    config: EvaluateConfig, train: LabelledVideos, *, model: bool
) -> tuple[ProbeKey, ...]:
    """The rows of the run's table that can be a head.

    Clips in order cannot where videos have different numbers of them.
    """
    rows = [ROW_OF[name] for name in config.probes]
    able = [row for row in rows if row.features == "backbone" or model]
    if train.regular.valid is not None:
        able = [row for row in able if row.probe != "ordered"]
    if not able:
        raise ProbeError(
            f"none of the table's rows ({', '.join(config.probes)}) can say what new videos show; "
            f"name another with --row"
        )
    return tuple(able)


def fit_head(
    train: LabelledVideos,
    classes: tuple[str, ...],
    model: ScaleModel | None,
    config: EvaluateConfig,
    *,
    seed: int,
    fingerprint: str,
    validation: LabelledVideos | None = None,
    pretraining: PretrainingSetup | None = None,
) -> Head:
    """Choose a row of the table and its temperature on validation videos; train it on all.

    These are `validation` if given, else a part of the training videos. `pretraining`: what the
    model learned from.
    """
    rows = list_rows(config, train, model=model is not None)
    job = _job(train, classes, model, config, seed, validation, pretraining)
    parts = job.divide()
    if parts.can_choose:
        row, plan, temperature, error, trials = _choose(job, rows)
    else:
        row = min(rows, key=PREFERRED.index)
        plan, temperature, error, trials = plan_row(job, row), 1.0, None, ()
    card = HeadCard(
        features=row.features,
        probe=row.probe,
        classes=classes,
        dim=train.random.features.shape[-1],
        model=job.model,
        config=config,
        temperature=temperature,
        calibration_error=error,
        selected_on=parts.selected_on,
        trials=trials,
        videos=len(train),
        seed=seed,
        fingerprint=fingerprint,
    )
    return Head(plan.fit(every_video(job), seed).eval(), card)


def _job(
    train: LabelledVideos, classes: tuple[str, ...], model: ScaleModel | None,
    config: EvaluateConfig, seed: int, validation: LabelledVideos | None,
    pretraining: PretrainingSetup | None,
) -> Job:  # fmt: skip
    """What rows are made from, without any test video."""
    none = torch.zeros(0, dtype=torch.int64)
    task = EvaluationTask(
        classes=classes,
        train=train.with_all_clips() if config.training.train_clips == "all" else train,
        test=HeldOut((), train.regular.of(none), none),
        validation=validation,
        pretraining=pretraining,
    )
    return Job(
        task=task,
        trained=model,
        model=default_shape(train.random) if model is None else model.config,
        config=config,
        seeds=(seed,),
    )


def _choose(
    job: Job, rows: tuple[ProbeKey, ...]
) -> tuple[ProbeKey, Plan, float, tuple[float, float], tuple[Trial, ...]]:
    """The row that does best on the validation videos, calibrated there."""
    parts, check = job.divide(), job.task.validation
    if parts.check is not None:
        check = job.task.train.only(parts.check)
    assert check is not None  # only called where there is something to choose by
    found: list[tuple[Trial, Plan, Tensor]] = []
    with bar("choosing a classifier", len(rows), "rows") as advance:
        for row in rows:
            plan = plan_row(job, row)
            guesses = predict(plan.fit(parts.learn, job.seeds[0]), check.regular)  # (M, C)
            trial = _trial(row, plan, guesses, check)
            found.append((trial, plan, guesses))
            advance(note=f"{row.features} {row.probe} {trial.right:.1%}")
    best, plan, guesses = max(found, key=lambda each: each[0].score)
    temperature = fit_temperature(guesses, check.classes)
    after = error_of(temper(guesses, temperature), check.classes)
    error = (error_of(guesses, check.classes), after)
    trials = tuple(trial for trial, _, _ in found)
    return ProbeKey(best.features, best.probe), plan, temperature, error, trials


def _trial(
    row: ProbeKey, plan: Plan, guesses: Float[Tensor, "M C"], check: LabelledVideos
) -> Trial:
    right, likely = score(guesses, check.classes)
    return Trial(
        features=row.features,
        probe=row.probe,
        rate=plan.rate,
        epochs=plan.epochs,
        right=right,
        log_likelihood=likely,
    )


def row_called(name: str) -> ProbeName:
    """A row of the probes' table by its name."""
    for row in ROW_OF:
        if row == name:
            return row
    raise ProbeError(f"there is no row {name!r}; rows are {', '.join(ROW_OF)}")


def only_row(config: EvaluateConfig, name: ProbeName | None) -> EvaluateConfig:
    """The same settings for one row of the table, if one is named."""
    return config if name is None else replace(config, probes=(name,))


def save_head(head: Head, folder: Path) -> None:
    """Write `head.safetensors`, then `head.json`, which makes it whole."""
    state = {name: value.contiguous() for name, value in head.network.state_dict().items()}
    card = encode_json(to_mapping(head.card))
    weights = seal(save(state), {"head.json": card})
    write_together({folder / "head.safetensors": weights, folder / "head.json": card})


def load_head(folder: Path, fingerprint: str) -> Head | None:
    """The head in a folder, if it is there and was made from the same things."""
    path = folder / "head.json"
    if not path.is_file():
        return None
    content = read_json(path)
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        return None
    if content.get("fingerprint") != fingerprint:
        return None
    damage = find_damage(folder / "head.safetensors", beside=path.name)
    if damage is None:
        try:
            return _rebuild(folder / "head.safetensors", build(HeadCard, content, str(path)))
        except (ClipsetError, OSError, SafetensorError, RuntimeError, KeyError) as error:
            damage = str(error).splitlines()[0]
    raise ModelError(
        f"the head in {folder} is damaged: {damage}; delete the folder, and the head is made again"
    )


def _rebuild(weights: Path, card: HeadCard) -> Head:
    state = load_file(weights)
    bad = first_nonfinite({name: value for name, value in state.items() if name != UNBOUNDED})
    if state.get(UNBOUNDED, torch.zeros(1)).isnan().any():
        bad = UNBOUNDED
    if bad is not None:
        raise ModelError(f"{bad} holds NaN or infinity")
    network = rebuild(
        ProbeKey(card.features, card.probe), state, card.config, outputs=len(card.classes),
        dim=card.dim, model=card.model,
    )  # fmt: skip
    return Head(network, card)
