"""Training of a backbone from videos: views of kept frames, a loop, checkpoints, backbone files.

The seed and the step decide all random numbers of a step. The learning rate follows the finished
fraction of the training: of its epochs, or of its minutes.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import nullcontext
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
from clipset.config import encode_json, fingerprint, parse_json, to_mapping
from clipset.data.catalog import Catalog
from clipset.devices import find_device
from clipset.errors import BackboneError, TrainingError, VideoError, error_line
from clipset.files import check_output
from clipset.process.locks import exclusive
from clipset.progress import bar, log
from clipset.sets.sampling import draw_batches
from clipset.ssl.config import MAX_EPOCHS, BackboneTraining
from clipset.ssl.frame_worker import FrameRequest
from clipset.ssl.frames import VideoPool
from clipset.ssl.masked_autoencoder import MaskedAutoencoder
from clipset.ssl.memory import check_memory
from clipset.ssl.method import SelfSupervisedMethod
from clipset.ssl.moco import MoCo
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
    settings = parse_json(encode_json(config), "the settings")  # as a checkpoint holds them
    identity = fingerprint(settings, seed, catalog.only(videos).fingerprint)
    path = folder / BACKBONE_FILE
    if is_finished(path, identity):
        return path
    check_memory(config, len(videos), torch_device)
    with exclusive(folder):
        state = RunState(
            fingerprint=identity, epoch=0, settings=settings, dim=config.network.embed_dim,
            seed=seed,
        )  # fmt: skip
        find_checkpoint(folder / "checkpoints", state)  # refuses another run before any work
        interval = config.stride / 30 / FRAMES_PER_INTERVAL
        request = FrameRequest(short_side=round(config.size * FRAME_SCALE), interval=interval)
        pool = VideoPool(videos, request, folder)
        try:
            run = BackboneRun(pool, config, folder, state, data=catalog.name, device=torch_device)
            run.resume()
            run.train()
        finally:
            pool.close()
    return path


def is_finished(path: Path, identity: str) -> bool:
    """Whether a file is the finished backbone of this very training."""
    try:
        return read_header(path).training.get("fingerprint") == identity
    except BackboneError:
        return False


def make_method(config: BackboneTraining) -> SelfSupervisedMethod:
    """The networks of a method, with random weights."""
    if config.method != "videomae":
        return MoCo(config.network, drop=config.drop if config.method == "sparse-moco" else None)
    return MaskedAutoencoder(config.network, mask_ratio=config.drop)


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
            self.method = make_method(config).to(device).train()
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

    def resume(self) -> None:
        """Continue from the newest whole checkpoint."""
        folder = self.folder / "checkpoints"
        newest = find_checkpoint(folder, self.state)
        if newest is not None:
            optimizer = self.optimization.optimizer
            self.state = load_checkpoint(folder, newest.epoch, optimizer, self.method)
            self.seconds = self.state.seconds
            self.optimization.num_done = self.state.epoch * self.steps_per_epoch
            self.optimization.scaler.load_state_dict(self.state.scaler)
            log(f"resumed after epoch {newest.epoch}, {self.seconds / 60:.1f} minutes of training")
        remove_partial_files(folder)

    def train(self) -> None:
        """Train to the end, and write the backbone on the way and at the end."""
        num_epochs = self.num_epochs or 1
        monitor = Monitor(self.folder, num_epochs=num_epochs, done=self.state.epoch)
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
                metrics = {"epoch": self.state.epoch, "loss": float(np.mean(losses))}
                rate = self.optimization.learning_rate
                monitor.write({**metrics, "learning_rate": rate, "seconds": self.seconds})
                if time.monotonic() - saved_at > CHECKPOINT_SECONDS:
                    with monitor.tolerate("a new checkpoint; the previous one stays"):
                        self._save_checkpoint()
                    saved_at = time.monotonic()
        self.export(BACKBONE_FILE)
        remove_checkpoints(self.folder / "checkpoints")

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

    def _save_checkpoint(self) -> None:
        write_checkpoint(
            self.folder / "checkpoints",
            self.state,
            self.optimization.optimizer,
            self.method,
            keep=CHECKPOINTS_KEPT,
        )

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


PAPERS = {
    "videomae": "VideoMAE (Tong et al., NeurIPS 2022)",
    "moco": "MoCo v3 (Chen et al., ICCV 2021)",
    "sparse-moco": "MoCo v3 (Chen et al., ICCV 2021), few tokens as in MSN (Assran et al., 2022)",
}
