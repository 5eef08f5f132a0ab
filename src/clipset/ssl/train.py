"""Training of a backbone from videos: views of kept frames, a loop, checkpoints, backbone files.

The seed and the step decide all random numbers of a step. The learning rate follows the finished
fraction of the training: of its epochs, or of its minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing, nullcontext
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from jaxtyping import UInt8
from torch import Tensor

from clipset.backbones.registry import KINETICS, BackboneSpec, Weights
from clipset.backbones.trained import BackboneHeader, read_header, write_backbone
from clipset.clips.cut import cut_clips
from clipset.clips.sampling import sample_random_clips
from clipset.config import fingerprint, to_mapping
from clipset.data.catalog import Catalog
from clipset.devices import find_device
from clipset.errors import BackboneError, TrainingError, VideoError, error_line
from clipset.files import check_output
from clipset.process.locks import exclusive
from clipset.progress import bar, log
from clipset.sets.sampling import draw_batches
from clipset.ssl.config import MAX_EPOCHS, BackboneTraining
from clipset.ssl.frames import FrameRequest, VideoPool
from clipset.ssl.memory import check_memory
from clipset.ssl.methods import make_method
from clipset.training.checkpoint import (
    RunState,
    find_checkpoint,
    load_checkpoint,
    remove_checkpoints,
    remove_partial_files,
    write_checkpoint,
)
from clipset.training.data import prefetch
from clipset.training.monitor import Monitor
from clipset.training.optim import Optimization, choose_precision, decay_groups
from clipset.training.trainer import mix_seeds

BACKBONE_FILE = "backbone.safetensors"
MILESTONES = {0.25: "quarter.safetensors", 0.5: "half.safetensors"}  # backbones on the way
CHECKPOINT_SECONDS = 60.0
CHECKPOINTS_KEPT = 2
FRAMES_PER_INTERVAL = 2  # kept frames for each frame of a clip
FRAME_SCALE = 8 / 7  # short side of kept frames, relative to the size of the clips
BETAS = (0.9, 0.95)  # of AdamW, as in VideoMAE
MAX_GRAD_NORM = 1.0
PAPERS = {
    "videomae": "VideoMAE (Tong et al., NeurIPS 2022)",
    "moco": "MoCo v3 (Chen et al., ICCV 2021)",
    "sparse-moco": "MoCo v3 (Chen et al., ICCV 2021), few tokens as in MSN (Assran et al., 2022)",
}


def train_backbone(
    catalog: Catalog,
    folder: Path,
    config: BackboneTraining,
    *,
    seed: int = 0,
    device: str = "auto",
) -> Path:
    """Train a backbone on videos without their labels; an interrupted training is resumed.

    Videos of the split `train` if there is one, else all. Returns the backbone file. On the way,
    the backbone of a quarter and of half of the training is written beside it.
    """
    videos = catalog.split("train").videos if "train" in catalog.splits else catalog.videos
    torch_device = find_device(device)
    check_output(folder, "folder")
    identity = fingerprint(config, seed, catalog.only(videos).fingerprint)
    path = folder / BACKBONE_FILE
    if _is_finished(path, identity):
        return path
    check_memory(config, len(videos), torch_device)
    with exclusive(folder):
        state = RunState(
            fingerprint=identity, epoch=0, settings=to_mapping(config),
            dim=config.network.embed_dim, seed=seed,
        )  # fmt: skip
        newest = find_checkpoint(folder / "checkpoints", state)  # refuses another run
        interval = config.stride / 30 / FRAMES_PER_INTERVAL
        request = FrameRequest(short_side=round(config.size * FRAME_SCALE), interval=interval)
        with closing(VideoPool(videos, request, folder)) as pool:
            run = BackboneRun(pool, config, folder, state, data=catalog.name, device=torch_device)
            if newest is not None:
                run.resume(newest.epoch)
            run.train()
    return path


def _is_finished(path: Path, identity: str) -> bool:
    """Whether a file is the finished backbone of this very training."""
    try:
        return read_header(path).training.get("fingerprint") == identity
    except BackboneError:
        return False


class BackboneRun:
    """A method, its optimisation, and how far the training is."""

    def __init__(
        self,
        pool: VideoPool,
        config: BackboneTraining,
        folder: Path,
        state: RunState,
        *,
        data: str,
        device: torch.device,
    ) -> None:
        self.pool, self.config, self.folder, self.device = pool, config, folder, device
        self.state, self.data, self.seed = state, data, state.seed
        self.steps_per_epoch = -(-len(pool) // config.batch_size)
        self.num_epochs = config.epochs or (None if config.minutes else MAX_EPOCHS)
        self.seconds = 0.0  # of training
        torch.manual_seed(self.seed)
        try:
            method = make_method(config.method, config.network, config.drop)
            self.method = method.to(device).train()
        except (RuntimeError, MemoryError) as error:
            raise TrainingError(f"cannot build the network: {error_line(error)}") from None
        self.dtype = choose_precision("auto", device)
        groups = decay_groups(self.method, config.weight_decay)
        self.optimization = Optimization(
            self.method,
            [{**group, "betas": BETAS} for group in groups],
            learning_rate=config.learning_rate,
            num_steps=self.steps_per_epoch * (self.num_epochs or 1),
            max_grad_norm=MAX_GRAD_NORM,
            scaler=torch.amp.GradScaler(device.type, enabled=self.dtype == torch.float16),
        )

    @property
    def progress(self) -> float:
        """The finished fraction of the training."""
        if self.config.minutes is not None:
            return min(self.seconds / (60 * self.config.minutes), 1.0)
        return self.optimization.num_done / self.optimization.num_steps

    def resume(self, epoch: int) -> None:
        """Continue after an epoch that has a checkpoint."""
        folder, optimizer = self.folder / "checkpoints", self.optimization.optimizer
        self.state = load_checkpoint(folder, epoch, optimizer, self.method)
        self.seconds = self.state.seconds
        self.optimization.num_done = epoch * self.steps_per_epoch
        self.optimization.scaler.load_state_dict(self.state.scaler)
        log(f"resumed after epoch {epoch}, {self.seconds / 60:.1f} minutes of training")

    def train(self) -> None:
        """Train to the end, and write the backbone on the way and at the end."""
        folder, optimizer = self.folder / "checkpoints", self.optimization.optimizer
        remove_partial_files(folder)
        monitor = Monitor(self.folder, num_epochs=self.num_epochs or 1, done=self.state.epoch)
        saved_at = time.monotonic()
        done = self.optimization.num_done
        with bar("training", self._expected_steps(), "steps", done=done) as advance:
            while self.progress < 1:
                losses = []
                for loss in self._epoch():
                    losses.append(loss)
                    advance(note=f"loss {loss:.3f}", total=self._expected_steps())
                if len(losses) < self.steps_per_epoch:
                    break  # the minutes are over within an epoch
                self.state = replace(
                    self.state, epoch=self.state.epoch + 1, seconds=self.seconds,
                    scaler=self.optimization.scaler.state_dict(),
                )  # fmt: skip
                metrics = {
                    "epoch": self.state.epoch, "loss": float(np.mean(losses)),
                    "learning_rate": self.optimization.learning_rate, "seconds": self.seconds,
                }  # fmt: skip
                monitor.write(metrics)
                if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
                    with monitor.tolerate("a new checkpoint; the previous one stays"):
                        write_checkpoint(
                            folder, self.state, optimizer, self.method, keep=CHECKPOINTS_KEPT
                        )
                    saved_at = time.monotonic()
        self.export(BACKBONE_FILE)
        remove_checkpoints(folder)

    def export(self, file_name: str) -> None:
        """Write the encoder as a backbone file."""
        config, network = self.config, self.config.network
        spec = BackboneSpec(
            name=f"{config.method}_{config.vit}",
            dim=network.embed_dim, frames=config.frames, stride=config.stride, size=config.size,
            mean=KINETICS.mean, std=KINETICS.std, pooling="last norm, then mean of all tokens",
            weights=Weights(
                file=file_name,
                licence="ask for the licence of the training videos",
                source=f"clipset pretrain-backbone on {self.data}",
            ),
            paper=PAPERS[config.method],
        )  # fmt: skip
        training = {
            "method": config.method, "data": self.data, "videos": len(self.pool),
            "steps": self.optimization.num_done, "minutes": self.seconds / 60,
            "progress": self.progress, "seed": self.seed, "settings": to_mapping(config),
            "fingerprint": self.state.fingerprint,
        }  # fmt: skip
        header = BackboneHeader(network=network, spec=spec, training=training)
        write_backbone(self.folder / file_name, self.method.encoder, header)

    def _expected_steps(self) -> int:
        """The number of steps; by the speed so far if the minutes are given."""
        done = self.optimization.num_done
        if self.config.minutes is None:
            return self.optimization.num_steps
        return max(round(done / self.progress) if self.progress else self.steps_per_epoch, done)

    def _epoch(self) -> Iterator[float]:
        """The losses of the steps of an epoch, which ends early when the minutes are over."""
        started_at = time.monotonic()
        for step, views in prefetch(self._batches()):
            before = self.progress
            if self.config.minutes is not None:
                self.optimization.num_steps = max(self._expected_steps(), 1)
            loss = self._step(step, views)
            now = time.monotonic()
            self.seconds, started_at = self.seconds + now - started_at, now
            self.method.update_teacher(self.progress)
            for milestone, file_name in MILESTONES.items():
                if before < milestone <= self.progress:
                    self.export(file_name)
            yield loss
            if self.progress >= 1:
                return

    def _batches(self) -> Iterator[tuple[int, UInt8[Tensor, "V B T 3 S S"]]]:
        """The views of the videos of an epoch: all of them once, in random order."""
        epoch = self.state.epoch
        generator = torch.Generator().manual_seed(mix_seeds(self.seed, 1, epoch))
        batches = draw_batches(len(self.pool), self.config.batch_size, generator)
        for index, videos in enumerate(batches):
            step = epoch * self.steps_per_epoch + index
            all_views = (self._views(video, step) for video in videos.tolist())
            readable = [views for views in all_views if views is not None]
            if not readable:
                raise TrainingError(f"none of the {len(videos)} videos of a batch can be read")
            yield step, torch.stack(readable, dim=1)

    def _views(self, video: int, step: int) -> UInt8[Tensor, "V T 3 S S"] | None:
        """Random clips of a video; none if it cannot be read any more."""
        config = self.config
        try:
            frames = self.pool.frames(video)
        except VideoError as error:
            log(f"{self.pool.videos[video].id} is left out of step {step}: {error}")
            return None
        generator = np.random.default_rng([self.seed, 2, step, video])
        plan = sample_random_clips(
            frames.info, config.sampling, config.span, config.frames, generator
        )
        return cut_clips(frames, plan, config.size)

    def _step(self, step: int, views: UInt8[Tensor, "V B T 3 S S"]) -> float:
        torch.manual_seed(mix_seeds(self.seed, 3, step))  # masks
        mean, std = (torch.tensor(v, device=self.device)[:, None, None] for v in KINETICS)
        pixels = (views.to(self.device).float() - mean) / std
        mixed = self.dtype != torch.float32
        with torch.autocast(self.device.type, self.dtype) if mixed else nullcontext():
            loss = self.method(pixels)
        value = loss.item()
        if not np.isfinite(value):
            raise TrainingError(f"the loss is not finite at step {step}; lower the learning rate")
        self.optimization.step(loss)
        return float(value)
