"""The pre-training loop. The seed and the step decide all random numbers of a step."""

from __future__ import annotations

import time
from contextlib import nullcontext, suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

from clipset.errors import OutputError, TrainingError, error_line
from clipset.model.scale import SetModel
from clipset.progress import bar
from clipset.sets.sampling import PixelPair, SetPair
from clipset.training.budget import (
    count_max_epochs,
    count_planned_epochs,
    find_plateau,
    is_check_due,
)
from clipset.training.card import ModelCard
from clipset.training.checkpoint import (
    RunState,
    ScaleModel,
    find_checkpoint,
    load_checkpoint,
    newest_checkpoint,
    remove_checkpoints,
    remove_model,
    remove_partial_files,
    save_model,
    write_checkpoint,
)
from clipset.training.config import PretrainConfig, weight_settings
from clipset.training.data import BatchSource, ClipSource, tensors_of
from clipset.training.distributed import ProcessGroup
from clipset.training.monitor import Metrics, Monitor, token_statistics
from clipset.training.optim import Optimization, ParamGroup, choose_precision, decay_groups
from clipset.training.validation import HeldOutLoss, Validation

CHECKPOINT_SECONDS = 20.0
CHECKPOINTS_KEPT = 2


class PretrainingRun:
    """A model, its optimisation, and how far the training is.

    `scale` is the set transformer, `model` all that is trained: here the same, with a backbone that
    is trained more than that.
    """

    def __init__(
        self,
        source: BatchSource,
        config: PretrainConfig,
        folder: Path,
        card: ModelCard,
        *,
        processes: ProcessGroup,
        validation: Validation | None = None,
        held_out: HeldOutLoss | None = None,
    ) -> None:
        self.source, self.config, self.folder, self.card = source, config, folder, card
        self.processes, self.device, self.seed = processes, processes.device, card.seed
        self.validation, self.held_out = validation, held_out
        self.settings = weight_settings(config)
        self.steps_per_epoch = source.batches_in_epoch(config)
        self.max_epochs = config.epochs or count_max_epochs(len(source), self.steps_per_epoch)
        self.num_epochs = self.max_epochs
        self.loss_curve: list[tuple[int, float]] = []  # epochs done, loss of held-out videos
        self.epoch, self.best = 0, (-1.0, 0)  # epochs done; best score and its epoch
        self.scale = self._init_scale()
        self.model = self._init_model()
        self.processes.broadcast_weights(self.model)
        self.dtype = choose_precision(config.precision, self.device)
        self.optimization = Optimization(
            self.model,
            self._parameter_groups(),
            learning_rate=config.learning_rate,
            num_steps=self.num_epochs * self.steps_per_epoch,
            max_grad_norm=config.max_grad_norm,
            scaler=torch.amp.GradScaler(self.device.type, enabled=self.dtype == torch.float16),
        )
        self._plan_epochs()

    def _init_scale(self) -> ScaleModel:
        torch.manual_seed(self.seed)
        try:
            scale = ScaleModel(self.source.dim, self.config.model, self.card)
        except (RuntimeError, MemoryError) as error:
            raise TrainingError(f"cannot build the model: {error_line(error)}") from None
        return scale.to(self.device).train()

    def _init_model(self) -> SetModel:
        """All that is trained, on the device."""
        return self.scale

    def _parameter_groups(self) -> list[ParamGroup]:
        """The trained parameters, with their weight decay and scale of the learning rate."""
        return decay_groups(self.model, self.config.weight_decay)

    def _set_statistics(self) -> None:
        self.scale.encoder.set_statistics(*self._measure_features())

    def _measure_features(self) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
        """Mean and standard deviation of the features at the start."""
        assert isinstance(self.source, ClipSource)
        return self.source.mean, self.source.std

    def _write_model(self, card: ModelCard) -> None:
        """Write what was trained, whole or not at all."""
        save_model(self.scale, card, self.folder)

    def resume(self) -> None:
        """Continue from the newest whole checkpoint; a checkpoint of another run is refused."""
        folder, is_main = self.folder / "checkpoints", self.processes.is_main
        newest = self.processes.run(
            lambda: find_checkpoint(folder, self._state()) if is_main else None
        )
        epoch = self.processes.broadcast(newest.epoch if newest else 0)
        if epoch:
            state = load_checkpoint(folder, epoch, self.optimization.optimizer, self.model)
            self.epoch, self.best = state.epoch, state.best or self.best
            self.optimization.num_done = epoch * self.steps_per_epoch
            self.optimization.scaler.load_state_dict(state.scaler)
            self.loss_curve = list(state.loss_curve)
            self._plan_epochs()
        elif self.config.standardise:
            self.processes.run(lambda: self._set_statistics() if is_main else None)
            self.processes.broadcast_weights(self.scale)
        self.processes.barrier()
        if is_main:
            remove_partial_files(folder)
        if is_main and not epoch:
            remove_model(self.folder / "best")

    def train(self) -> None:
        """Run the remaining epochs."""
        if not self.processes.is_main:
            while self.epoch < self.num_epochs:
                self._epoch()
            return
        monitor = Monitor(self.folder, num_epochs=self.num_epochs, done=self.epoch)
        saved = time.monotonic()
        with bar("pre-training", self.num_epochs, "epochs", done=self.epoch) as advance:
            while self.epoch < self.num_epochs:
                metrics = self._epoch()
                metrics |= self._validate(monitor)
                monitor.write(metrics)
                speed = metrics["samples_per_second"]
                note = f"loss {metrics['loss']:.3f}, {speed:.0f} videos/s"
                advance(note=note, total=self.num_epochs)
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    with monitor.tolerate("a new checkpoint; the previous one stays"):
                        self._save_checkpoint()
                    saved = time.monotonic()

    def save(self) -> None:
        """Write the trained model; if that fails, write a checkpoint instead."""
        try:
            self._write_model(replace(self.card, steps=self.optimization.num_done))
        except OutputError as error:
            with suppress(OutputError):
                self._save_checkpoint()
            newest = newest_checkpoint(self.folder / "checkpoints")
            saved = f"epoch {newest.epoch} of {self.num_epochs}" if newest else "no epoch"
            raise OutputError(
                error.problem, f"{saved} is saved; {error.advice}", str(error.strerror)
            ) from None
        remove_checkpoints(self.folder / "checkpoints")

    def _save_checkpoint(self) -> None:
        write_checkpoint(
            self.folder / "checkpoints",
            self._state(),
            self.optimization.optimizer,
            self.model,
            keep=CHECKPOINTS_KEPT,
        )

    def _state(self) -> RunState:
        return RunState(
            fingerprint=self.card.fingerprint,
            epoch=self.epoch,
            settings=self.settings,
            dim=self.source.dim,
            seed=self.seed,
            best=self.best if self.best[1] else None,
            loss_curve=tuple(self.loss_curve),
            scaler=self.optimization.scaler.state_dict(),
        )

    def _validate(self, monitor: Monitor) -> Metrics:
        """Every few epochs, score the model and save the best one."""
        interval = self.config.validate_every
        if self.validation is None or (self.epoch % interval and self.epoch != self.num_epochs):
            return {}
        score = self.validation.score(self.scale, self.device)
        if score > self.best[0]:
            self.best = (score, self.epoch)
            result = {"knn": score, "epoch": self.epoch, "split": self.validation.split}
            with monitor.tolerate("its best model"):
                save_model(self.scale, replace(self.card, validation=result), self.folder / "best")
        return {"validation_knn": score}

    def _plan_epochs(self) -> None:
        """Without a number of epochs, training ends when it stops paying."""
        if self.config.epochs is not None:
            return
        plateau = self.processes.broadcast(find_plateau(self.loss_curve, self.max_epochs))
        self.num_epochs = count_planned_epochs(plateau, self.max_epochs)
        self.optimization.num_steps = self.num_epochs * self.steps_per_epoch
        self.optimization.decay_start = plateau * self.steps_per_epoch

    def _epoch(self) -> Metrics:
        """Train on every video once, and check now and then whether it still pays."""
        start = time.perf_counter()
        generator = torch.Generator().manual_seed(mix_seeds(self.seed, 1, self.epoch))
        sums: dict[str, float] = {}
        batches = self.source.batches(self.config, generator, self.processes, epoch=self.epoch)
        for size, pair in batches:
            for name, value in self._step(pair).items():
                sums[name] = sums.get(name, 0.0) + value * size / len(self.source)
        seconds = time.perf_counter() - start
        self.epoch += 1
        metrics: Metrics = {"epoch": self.epoch, **sums}
        if self.processes.is_main:
            metrics |= token_statistics(self.model, pair, self.device)
        if self.held_out is not None and is_check_due(self.epoch, self.max_epochs):
            loss = self.held_out.measure(self.model, self.device)
            metrics["validation_loss"] = loss
            self.loss_curve.append((self.epoch, loss))
            self._plan_epochs()
        speed = {"seconds": seconds, "samples_per_second": len(self.source) / seconds}
        return metrics | speed

    def _step(self, pair: SetPair | PixelPair) -> dict[str, float]:
        """One step on this rank's shard of a batch; losses and accuracies of the whole batch."""
        step, learning_rate = self.optimization.num_done, self.optimization.learning_rate
        rank = (self.processes.rank,) if self.processes.rank else ()
        torch.manual_seed(mix_seeds(self.seed, 2, step, *rank))  # dropout
        inputs: dict[str, Any] = tensors_of(pair, self.device)
        if self.processes.gather is not None:
            inputs["gather"] = self.processes.gather
        mixed = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype) if mixed else nullcontext():
            losses = self.model.losses(**inputs)
        self.optimization.backward(losses.total)
        self.processes.average_gradients(self.model)
        tensors: dict[str, Tensor] = {f.name: getattr(losses, f.name) for f in fields(losses)}
        means = self.processes.mean(torch.stack([t.detach().float() for t in tensors.values()]))
        values = dict(zip(tensors, means.tolist(), strict=True))
        if not np.isfinite(values["total"]):
            raise TrainingError(f"the loss is not finite at step {step}; lower the learning rate")
        norm = self.optimization.update()
        return {
            "loss": values.pop("total"),
            **values,
            "gradient_norm": norm,
            "learning_rate": learning_rate,
        }


def mix_seeds(*numbers: int) -> int:
    """One seed from several numbers, different for different ones."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
