"""The classifier of a run: chosen and calibrated on validation videos, trained on all, kept."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from pathlib import Path

import torch
from jaxtyping import Float
from safetensors import SafetensorError
from safetensors.torch import load_file, save
from torch import Tensor, nn

from clipset.config import build, read_json, to_mapping, write_atomic, write_json
from clipset.errors import ModelError
from clipset.model.config import ModelConfig
from clipset.model.scale import ScaleModel, make_encoder
from clipset.predict.calibration import error_of, fit_temperature, temper
from clipset.probes.config import ProbeConfig
from clipset.probes.fit import Network, NetworkRun, fit, predict
from clipset.probes.networks import ClipProbe, SetProbe
from clipset.probes.problem import Labelled
from clipset.probes.selection import count_epochs, validation_split
from clipset.probes.suite import Features, ProbeName
from clipset.progress import bar
from clipset.sets.clips import VideoClips, clip_statistics

FORMAT = 1
Row = tuple[Features, ProbeName]
ROWS: tuple[Row, ...] = (
    ("scale", "linear"),
    ("backbone", "linear"),
    ("backbone", "mlp"),
    ("backbone", "transformer"),
    ("scale", "finetune"),
)  # what a head may be; where nothing can be chosen, it is the first


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """How one kind of head did on the validation videos, at its best rate and epoch."""

    features: Features
    probe: ProbeName
    rate: float
    epochs: int
    right: float
    log_likelihood: float

    @property
    def score(self) -> tuple[float, float]:
        """What choices go by: more videos right, then surer of the truth."""
        return self.right, self.log_likelihood


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadCard:
    """What a head is, why it was chosen, and what it was trained on.

    `calibration_error` is that of the validation videos before and after the temperature.
    """

    features: Features
    probe: ProbeName
    classes: tuple[str, ...]
    dim: int
    model: ModelConfig
    mlp_hidden: int
    temperature: float
    calibration_error: tuple[float, float] | None
    selected_on: str
    trials: tuple[Trial, ...]
    videos: int
    seed: int
    fingerprint: str
    format: int = FORMAT


@dataclass(frozen=True, slots=True)
class Head:
    """A trained classifier with its card."""

    network: nn.Module
    card: HeadCard

    def predict(self, clips: VideoClips) -> Float[Tensor, "M C"]:
        """The calibrated probability of every class."""
        return temper(predict(self.network, clips), self.card.temperature)


def fit_head(
    train: Labelled,
    classes: tuple[str, ...],
    model: ScaleModel | None,
    config: ProbeConfig,
    *,
    seed: int,
    fingerprint: str,
) -> Head:
    """Choose a head and its temperature on a part of the training videos; train it on all."""
    made = _Maker(train, len(classes), model, config.mlp_hidden)
    rows = [row for row in ROWS if row[0] == "backbone" or model is not None]
    parts = validation_split(train, config.fit.validation, seed)
    trials: list[Trial] = []
    temperature, error = 1.0, None
    selected_on = "nothing: too few training videos to set some aside"
    if parts is None:
        best = Trial(
            features=rows[0][0],
            probe=rows[0][1],
            rate=config.fit.head_rates[len(config.fit.head_rates) // 2],
            epochs=config.fit.epochs,
            right=float("nan"),
            log_likelihood=float("nan"),
        )
    else:
        learn, check = train.only(parts[0]), train.only(parts[1])
        found = []
        with bar("choosing a classifier", len(rows), "kinds") as advance:
            for row in rows:
                found.append(_try(row, made.network(row), learn, check, config, seed))
                advance(note=f"{' '.join(row)} {found[-1][0].right:.1%}")
        best, guesses = max(found, key=lambda pair: pair[0].score)
        trials = [trial for trial, _ in found]
        temperature = fit_temperature(guesses, check.classes)
        after = error_of(temper(guesses, temperature), check.classes)
        error = (error_of(guesses, check.classes), after)
        selected_on = f"{len(check)} of {len(train)} training videos"
    network = _train_fully(made.network((best.features, best.probe)), train, config, best, seed)
    card = HeadCard(
        features=best.features,
        probe=best.probe,
        classes=classes,
        dim=made.dim,
        model=made.shape,
        mlp_hidden=config.mlp_hidden,
        temperature=temperature,
        calibration_error=error,
        selected_on=selected_on,
        trials=tuple(trials),
        videos=len(train),
        seed=seed,
        fingerprint=fingerprint,
    )
    return Head(network, card)


def _try(
    row: Row, make: Network, learn: Labelled, check: Labelled, config: ProbeConfig, seed: int
) -> tuple[Trial, Float[Tensor, "M C"]]:
    """The rate and epoch that do best on the validation videos, and the probabilities there."""
    best: tuple[Trial, Float[Tensor, "M C"]] | None = None
    tuned = row[1] in ("transformer", "finetune")
    epochs = _epochs(row, learn, config)
    for rate in config.fit.rates if tuned else config.fit.head_rates:
        run = NetworkRun(make, learn, config.fit, rate=rate, epochs=epochs, seed=seed)
        for epoch in range(1, epochs + 1):
            run.run_epoch()
            guesses = predict(run.network, check.regular)  # (M, C)
            true = guesses[torch.arange(len(check)), check.classes]
            trial = Trial(
                features=row[0],
                probe=row[1],
                rate=rate,
                epochs=epoch,
                right=(guesses.argmax(dim=1) == check.classes).double().mean().item(),
                log_likelihood=true.double().clamp_min(1e-9).log().mean().item(),
            )
            if best is None or trial.score > best[0].score:
                best = trial, guesses
    if best is None:
        raise ModelError("there is no learning rate or no epoch to try; see the recipe's probe.fit")
    return best


def _train_fully(
    make: Network, train: Labelled, config: ProbeConfig, best: Trial, seed: int
) -> nn.Module:
    """The chosen kind of head on all training videos, stopped where it did best."""
    planned = _epochs((best.features, best.probe), train, config)
    epochs = min(best.epochs, planned)
    return fit(make, train, config.fit, rate=best.rate, epochs=epochs, seed=seed, schedule=planned)


def _epochs(row: Row, train: Labelled, config: ProbeConfig) -> int:
    """Epochs of a training: as configured, or fewer where there are many videos."""
    tuned = row[1] in ("transformer", "finetune")
    steps = config.fit.tuned_steps if tuned else config.fit.head_steps
    return count_epochs(len(train), config.fit, steps)


class _Maker:
    """Makes fresh networks for the rows."""

    def __init__(
        self, train: Labelled, classes: int, model: ScaleModel | None, mlp_hidden: int
    ) -> None:
        self.dim, self.classes, self.mlp_hidden = (
            train.random.features.shape[-1],
            classes,
            mlp_hidden,
        )
        self.encoder = None if model is None else model.encoder
        self.shape = ModelConfig() if model is None else model.config
        self.statistics = clip_statistics(train.random)

    def network(self, row: Row) -> Network:
        """A function that makes a network: from the pre-trained encoder, or from a random start."""

        def make() -> nn.Module:
            network = empty_network(row, self.dim, self.classes, self.shape, self.mlp_hidden)
            if isinstance(network, SetProbe):
                if row[0] == "scale" and self.encoder is not None:
                    network.encoder.load_state_dict(copy.deepcopy(self.encoder.state_dict()))
                else:
                    network.encoder.standardise_by(*self.statistics)
            return network

        return make


def empty_network(
    row: Row, dim: int, classes: int, model: ModelConfig, mlp_hidden: int
) -> ClipProbe | SetProbe:
    """The network of a row before it has learned anything."""
    channels = sum(model.dims) or dim  # of all backbones that saw a clip
    if row == ("backbone", "linear"):
        return ClipProbe(channels, classes)
    if row == ("backbone", "mlp"):
        return ClipProbe(channels, classes, hidden=mlp_hidden, out=mlp_hidden // 4, dropout=0.1)
    return SetProbe(make_encoder(dim, model), classes, frozen=row == ("scale", "linear"))


def save_head(head: Head, folder: Path) -> None:
    """Write `head.safetensors`, then `head.json`, which makes it whole."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {name: value.contiguous() for name, value in head.network.state_dict().items()}
    write_atomic(folder / "head.safetensors", save(state))
    write_json(folder / "head.json", to_mapping(head.card))


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
    card = build(HeadCard, content, str(path))
    row = (card.features, card.probe)
    network = empty_network(row, card.dim, len(card.classes), card.model, card.mlp_hidden)
    try:
        network.load_state_dict(load_file(folder / "head.safetensors"))
    except (OSError, SafetensorError, RuntimeError) as error:
        first = str(error).splitlines()[0]
        raise ModelError(
            f"the weights in {folder} do not fit head.json: {first}; delete the folder, "
            f"and the head is made again"
        ) from None
    return Head(network.eval(), card)
