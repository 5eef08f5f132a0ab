"""The training loop. All chance of a step comes from the seed and the step's number."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn, optim

from clipset.errors import ClipsetError, OutputError, TrainingError
from clipset.model.losses import ScaleLosses
from clipset.model.scale import ScaleModel
from clipset.progress import bar, say
from clipset.sets.sampling import SetPair
from clipset.training.card import ModelCard
from clipset.training.checkpoint import remove_model, save_model
from clipset.training.config import PretrainConfig, held
from clipset.training.data import ClipSource, tensors_of
from clipset.training.distributed import Ranks
from clipset.training.monitor import Line, Monitor, look_at
from clipset.training.optim import decay_groups, learning_rate
from clipset.training.precision import choose_precision
from clipset.training.resume import (
    RunState,
    find_checkpoint,
    load_checkpoint,
    newest_checkpoint,
    remove_checkpoints,
    sweep,
    write_checkpoint,
)
from clipset.training.validation import Validation

CHECKPOINT_SECONDS = 20.0


class TrainingRun:
    """A training run in memory."""

    def __init__(
        self,
        source: ClipSource,
        config: PretrainConfig,
        folder: Path,
        card: ModelCard,
        *,
        ranks: Ranks,
        validation: Validation | None = None,
    ) -> None:
        self.source, self.config, self.folder, self.card = source, config, folder, card
        self.ranks, self.device, self.seed = ranks, ranks.device, card.seed
        self.validation = validation
        self.steps_per_epoch = source.batches_in_epoch(config)
        self.epochs = max(config.epochs, -(-config.min_steps // self.steps_per_epoch))
        self.steps = self.epochs * self.steps_per_epoch
        self.epoch, self.best = 0, (-1.0, 0)
        self.model = self._first_model()
        self.optimiser = optim.AdamW(
            decay_groups(self.model, config.weight_decay), lr=0.0, fused=True
        )
        self.dtype = choose_precision(config, self.device)
        self.scaler = torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16)
        self.losses = LossFunction(self.model, compile=config.compile, ranks=ranks)

    def _first_model(self) -> ScaleModel:
        torch.manual_seed(self.seed)
        try:
            model = ScaleModel(self.source.dim, self.config.model)
        except (RuntimeError, MemoryError) as error:
            raise TrainingError(f"the model cannot be made: {_first_line(error)}") from None
        if self.config.standardise:
            model.encoder.standardise_by(self.source.mean, self.source.std)
        model.to(self.device).train()
        self.ranks.share_weights(model)
        return model

    def resume(self) -> None:
        """Go on from the newest whole checkpoint; one of another run is left alone."""
        folder = self.folder / "checkpoints"
        found = self.ranks.agree(
            lambda: find_checkpoint(folder, self._state()) if self.ranks.first else None
        )
        epoch = self.ranks.share(found.epoch if found else 0)
        if epoch:
            state = load_checkpoint(folder, epoch, self.optimiser, self.model)
            self.epoch, self.best = state.epoch, state.best or self.best
            self.scaler.load_state_dict(state.scaler)
        self.ranks.wait()
        if self.ranks.first:
            sweep(folder)
        if self.ranks.first and not epoch:
            remove_model(self.folder / "best")

    def train(self) -> None:
        """All epochs that are left."""
        if not self.ranks.first:
            while self.epoch < self.epochs:
                self._epoch()
                self.epoch += 1
            return
        monitor = Monitor(self.folder, epochs=self.epochs, done=self.epoch)
        saved = time.monotonic()
        with bar("pre-training", self.epochs, "epochs", done=self.epoch) as advance:
            while self.epoch < self.epochs:
                line = self._epoch()
                self.epoch += 1
                line |= self._validate(monitor)
                monitor.write(line)
                advance(note=f"loss {line['loss']:.3f}, {line['samples_per_second']:.0f} videos/s")
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    with monitor.tolerated("a new checkpoint, the one before stays"):
                        self._save()
                    saved = time.monotonic()

    def save(self) -> None:
        """Write the trained model; if that cannot be done, keep how far the training is."""
        try:
            save_model(self.model, self.card, self.folder)
        except OutputError as error:
            with suppress(OutputError):
                self._save()
            found = newest_checkpoint(self.folder / "checkpoints")
            kept = f"epoch {found.epoch} of {self.epochs} is kept" if found else "nothing is kept"
            raise OutputError(
                error.problem, f"{kept}; {error.advice}", str(error.strerror)
            ) from None
        remove_checkpoints(self.folder / "checkpoints")

    def _save(self) -> None:
        write_checkpoint(
            self.folder / "checkpoints",
            self._state(),
            self.optimiser,
            self.model,
            keep=self.config.keep,
        )

    def _state(self) -> RunState:
        return RunState(
            fingerprint=self.card.fingerprint,
            epoch=self.epoch,
            settings=held(self.config),
            dim=self.source.dim,
            seed=self.seed,
            best=self.best if self.best[1] else None,
            scaler=self.scaler.state_dict(),
        )

    def _validate(self, monitor: Monitor) -> Line:
        """Judge the model now and then, and keep the best one."""
        every = self.config.validate_every
        if self.validation is None or (self.epoch % every and self.epoch != self.epochs):
            return {}
        score = self.validation.score(self.model, self.device)
        if score > self.best[0]:
            self.best = (score, self.epoch)
            said = {"knn": score, "epoch": self.epoch, "judged_on": self.validation.judged_on}
            with monitor.tolerated("keeping its best model"):
                save_model(self.model, replace(self.card, validation=said), self.folder / "best")
        return {"validation_knn": score}

    def _epoch(self) -> Line:
        began = time.perf_counter()
        generator = torch.Generator().manual_seed(_mix(self.seed, 1, self.epoch))
        sums: dict[str, float] = {}
        step = self.epoch * self.steps_per_epoch
        for size, pair in self.source.batches(self.config, generator, self.ranks):
            for name, value in self._step(step, pair).items():
                sums[name] = sums.get(name, 0.0) + value * size / len(self.source)
            step += 1
        seconds = time.perf_counter() - began
        return {
            "epoch": self.epoch + 1,
            **sums,
            **(look_at(self.model, pair, self.device) if self.ranks.first else {}),
            "seconds": seconds,
            "samples_per_second": len(self.source) / seconds,
        }

    def _step(self, step: int, pair: SetPair) -> dict[str, float]:
        config = self.config
        rate = learning_rate(step, self.steps, peak=config.learning_rate, warmup=config.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        losses = self.losses(self._backward, step, pair)
        self.ranks.average_gradients(self.model)
        self.scaler.unscale_(self.optimiser)
        largest = config.clip_gradient or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), largest)
        numbers = self._numbers(losses)
        if not np.isfinite(numbers["loss"]):
            raise TrainingError(f"the loss is not a finite number at step {step}; lower the rate")
        self.scaler.step(self.optimiser)
        self.scaler.update()
        return {**numbers, "gradient_norm": float(norm), "learning_rate": rate}

    def _backward(
        self, compute: Callable[..., ScaleLosses], step: int, pair: SetPair
    ) -> ScaleLosses:
        """The losses of this rank's part of a batch, and their gradients."""
        mixed = self.dtype != torch.float32
        rank = (self.ranks.rank,) if self.ranks.rank else ()
        torch.manual_seed(_mix(self.seed, 2, step, *rank))  # for dropout
        self.optimiser.zero_grad(set_to_none=True)
        inputs: dict[str, Any] = tensors_of(pair, self.device)
        if self.ranks.gather is not None:
            inputs["gather"] = self.ranks.gather
        with torch.autocast(self.device.type, self.dtype) if mixed else nullcontext():
            losses = compute(**inputs)
        self.scaler.scale(losses.total).backward()
        return losses

    def _numbers(self, losses: ScaleLosses) -> dict[str, float]:
        """The losses and accuracies of the whole batch."""
        values: dict[str, Tensor] = {f.name: getattr(losses, f.name) for f in fields(losses)}
        means = self.ranks.mean(torch.stack([v.detach().float() for v in values.values()]))
        numbers = dict(zip(values, means.tolist(), strict=True))
        return {"loss": numbers.pop("total"), **numbers}


class LossFunction:
    """The model's losses, compiled if that was asked for and works here."""

    def __init__(self, model: ScaleModel, *, compile: bool, ranks: Ranks) -> None:
        self.plain: Callable[..., ScaleLosses] = model.losses
        self.compiled: Callable[..., ScaleLosses] | None = None
        self.speaks = ranks.first
        if compile and ranks.ranks > 1:
            self._give_up("it does not go together with several ranks")
        elif compile:
            try:
                self.compiled = torch.compile(model.losses)
            except RuntimeError as error:
                self._give_up(error)

    def __call__(
        self,
        backward: Callable[[Callable[..., ScaleLosses], int, SetPair], ScaleLosses],
        step: int,
        pair: SetPair,
    ) -> ScaleLosses:
        """One pass forward and back; when the compiler fails, the same without it."""
        if self.compiled is not None:
            try:
                return backward(self.compiled, step, pair)
            except ClipsetError:
                raise
            except Exception as error:
                self._give_up(error)
        return backward(self.plain, step, pair)

    def _give_up(self, reason: object) -> None:
        self.compiled = None
        if self.speaks:
            say(f"torch.compile is not used: {_first_line(reason)}")


def _first_line(reason: object) -> str:
    return (str(reason).strip() or repr(reason)).splitlines()[0]


def _mix(*numbers: int) -> int:
    """One seed from several numbers, different for different ones."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
