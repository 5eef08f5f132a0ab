"""The classifier of a run: selected and calibrated on validation videos, trained on all, saved."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import save
from torch import Tensor, nn

from clipset.backbones.checkpoints import first_nonfinite
from clipset.checksums import find_damage, seal
from clipset.config import build, encode_json, fingerprint, near_names, read_json, to_mapping
from clipset.errors import ClipsetError, ModelError, ProbeError
from clipset.evaluation.calibration import (
    apply_temperature,
    fit_temperature,
    prediction_calibration_error,
)
from clipset.features.store import Manifest
from clipset.files import write_together
from clipset.model.config import ModelConfig
from clipset.probes.base import Probe, ProbeSetup, Selection, predict_videos
from clipset.probes.config import EvaluateConfig, ProbeKey, ProbeName
from clipset.probes.registry import make_probe, probe_key, rebuild_classifier
from clipset.probes.search import score_outputs
from clipset.probes.task import EvaluationTask, HeldOut, LabelledVideos
from clipset.progress import bar
from clipset.sets.batch import ClipBatch
from clipset.training.checkpoint import ScaleModel, load_file
from clipset.training.joint import PretrainingSetup

FORMAT = 4
LABELS = "labels"  # instead of a probe: the head of labels that were given on the page
UNBOUNDED = "scale"  # infinite for a constant channel, which then has no weight
PREFERRED: tuple[ProbeName, ...] = (
    "scale_linear", "scale_attentive", "linear", "attentive", "mlp", "finetune", "transformer",
    "scale_course_knn", "scale_knn", "course_knn", "knn", "scale_ordered", "ordered",
)  # of probes with the same accuracy, and without validation videos, the first  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationScore:
    """The score of one probe on the validation videos, with its best settings."""

    probe: ProbeName
    learning_rate: float | None
    epochs: int | None
    accuracy: float
    log_likelihood: float

    @property
    def rank(self) -> tuple[float, int]:
        """Higher is better. Confidence does not count: it is calibrated anyway."""
        return self.accuracy, -PREFERRED.index(self.probe)


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCard:
    """What a head is, why it was selected, and what it was trained on.

    `calibration_error` is that of the validation videos before and after the temperature.
    """

    probe: ProbeName
    classes: tuple[str, ...]
    dim: int
    model: ModelConfig
    config: EvaluateConfig
    temperature: float
    calibration_error: tuple[float, float] | None
    selected_on: str | None
    candidates: tuple[ValidationScore, ...]
    videos: int
    seed: int
    fingerprint: str
    format: int = FORMAT

    @property
    def key(self) -> ProbeKey:
        """Features and kind of the probe."""
        return probe_key(self.probe)

    @property
    def reason(self) -> str:
        """Why this probe is the head."""
        if self.selected_on and not self.candidates:
            return f"trained on {self.videos} labels of the page, settings by {self.selected_on}"
        probe_scores = [score for score in self.candidates if score.probe == self.probe]
        if not probe_scores:
            return "the preferred probe, without validation videos"
        accuracy = f"{probe_scores[0].accuracy:.1%} correct on {self.selected_on}"
        if len(self.candidates) == 1:
            return f"the requested probe, {accuracy}"
        return f"the best of {len(self.candidates)} probes, {accuracy}"


@dataclass(frozen=True, slots=True)
class Head:
    """A trained classifier with its card."""

    network: nn.Module
    card: HeadCard

    def predict(self, clips: ClipBatch) -> Float[Tensor, "M C"]:
        """The calibrated probability of every class."""
        return apply_temperature(predict_videos(self.network, clips), self.card.temperature)


def list_candidates(config: EvaluateConfig, *, has_model: bool) -> list[ProbeName]:
    """The probes of the settings that can be a head."""
    candidates = [
        name for name in config.probes if has_model or probe_key(name).features == "backbone"
    ]
    if not candidates:
        raise ProbeError(
            f"none of the probes ({', '.join(config.probes)}) can predict new videos of this run; "
            f"give another with --probe"
        )
    return candidates


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
    """Select a probe and its temperature on validation videos; train it on all training videos.

    The validation videos are `validation`, else a subset of the training videos.
    """
    probe_names = list_candidates(config, has_model=model is not None)
    no_videos = torch.zeros(0, dtype=torch.int64)
    task = EvaluationTask(
        classes=classes,
        train=train.train_on_all_clips() if config.training.train_clips == "all" else train,
        test=HeldOut((), train.regular.select(no_videos), no_videos),
        validation=validation,
        pretraining=pretraining,
    )
    setup = ProbeSetup(task=task, model=copy.deepcopy(model), config=config, seed=seed)
    split = setup.split_validation()
    validation = split.validation
    if validation is None:
        probe_names = [min(probe_names, key=PREFERRED.index)]
    searched: dict[ProbeName, tuple[Probe, Selection]] = {}
    outputs: dict[ProbeName, Tensor] = {}  # for the validation videos
    scores: list[ValidationScore] = []
    with bar("selecting a classifier", len(probe_names), "probes") as advance:
        for name in probe_names:
            probe = make_probe(name, setup)
            selection = probe.search()
            searched[name] = probe, selection
            if validation is not None:
                classifier = probe.fit(selection, split.train, seed)
                outputs[name] = predict_videos(classifier, validation.regular)
                accuracy, likelihood = score_outputs(outputs[name], validation.classes)
                score = ValidationScore(
                    probe=name,
                    learning_rate=selection.learning_rate,
                    epochs=selection.epochs,
                    accuracy=accuracy,
                    log_likelihood=likelihood,
                )
                scores.append(score)
            advance(note=f"{name} {scores[-1].accuracy:.1%}" if scores else name)
    best_probe, temperature, calibration_error = probe_names[0], 1.0, None
    if validation is not None:
        targets = validation.classes
        best_probe = max(scores, key=lambda score: score.rank).probe
        temperature = fit_temperature(outputs[best_probe], targets)
        calibrated = apply_temperature(outputs[best_probe], temperature)
        calibration_error = (
            prediction_calibration_error(outputs[best_probe], targets),
            prediction_calibration_error(calibrated, targets),
        )
    card = HeadCard(
        probe=best_probe,
        classes=classes,
        dim=train.random.dim,
        model=setup.architecture,
        config=config,
        temperature=temperature,
        calibration_error=calibration_error,
        selected_on=split.description,
        candidates=tuple(scores),
        videos=len(train),
        seed=seed,
        fingerprint=fingerprint,
    )
    probe, selection = searched[best_probe]
    return Head(probe.fit(selection, torch.arange(len(train)), seed).eval(), card)


def find_probe(name: str) -> ProbeName:
    """A probe by its name."""
    probe_names: tuple[ProbeName, ...] = get_args(ProbeName)
    if name not in probe_names:
        raise ProbeError(f"unknown probe {name!r}; {near_names(name, probe_names)}")
    return name


def labels_fingerprint(manifest: Manifest) -> str:
    """Identifies the features that a head of labels is for; the encoder is in the head."""
    return fingerprint(FORMAT, LABELS, manifest.fingerprint)


def save_head(head: Head, folder: Path) -> None:
    """Write `head.safetensors`, then `head.json`."""
    state = {name: value.contiguous() for name, value in head.network.state_dict().items()}
    card_bytes = encode_json(to_mapping(head.card))
    weight_bytes = seal(save(state), {"head.json": card_bytes})
    write_together({folder / "head.safetensors": weight_bytes, folder / "head.json": card_bytes})


def load_head(folder: Path, fingerprint: str) -> Head | None:
    """The head in a folder; None if there is none with this fingerprint."""
    card_path, weights_path = folder / "head.json", folder / "head.safetensors"
    card_content = read_json(card_path) if card_path.is_file() else None
    if not isinstance(card_content, dict):
        return None
    if (card_content.get("format"), card_content.get("fingerprint")) != (FORMAT, fingerprint):
        return None
    damage = find_damage(weights_path, beside=card_path.name)
    if damage is None:
        try:
            card, state = build(HeadCard, card_content, str(card_path)), load_file(weights_path)
            checked = {n: v[~v.isinf()] if n == UNBOUNDED else v for n, v in state.items()}
            if (bad_tensor := first_nonfinite(checked)) is not None:
                raise ModelError(f"{bad_tensor} holds NaN or infinity")
            classifier = rebuild_classifier(
                card.probe, state, card.config, num_outputs=len(card.classes),
                feature_dim=card.dim, model=card.model,
            )  # fmt: skip
            return Head(classifier, card)
        except (ClipsetError, OSError, SafetensorError, RuntimeError, KeyError) as error:
            damage = str(error).splitlines()[0]
    raise ModelError(
        f"the head in {folder} is damaged: {damage}; delete the folder, and the head is made again"
    )
