"""Pre-training: a store's random clips in, a model that understands sets of clips out."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Literal

import msgspec
import numpy as np
import torch
from safetensors import SafetensorError, safe_open
from torch import nn, optim

from clipset.config import fingerprint, to_mapping
from clipset.devices import find_device
from clipset.errors import TrainingError
from clipset.features.store import FeatureStore
from clipset.model.losses import ScaleLosses
from clipset.model.scale import ScaleModel
from clipset.progress import bar
from clipset.sets.clips import VideoClips, feature_statistics, read_clips
from clipset.sets.draw import draw_batches, draw_set_pair, draw_set_size
from clipset.training.checkpoint import (
    ModelCard,
    load_model,
    load_progress,
    read_card,
    save_model,
    save_progress,
)
from clipset.training.config import PretrainConfig
from clipset.training.schedule import decay_groups, learning_rate

CHECKPOINT_SECONDS = 20.0


def ssl_videos(store: FeatureStore, ssl_split: Literal["train", "all"]) -> np.ndarray:
    """Which videos are learned from: all, or those of the train split if there is one."""
    splits = {video.id: video.split for video in store.catalog}
    everything = np.arange(len(store))
    if ssl_split == "all" or "train" not in store.catalog.splits:
        return everything
    return everything[[splits.get(id) == "train" for id in store.ids]]


def pretrain(
    store: FeatureStore,
    folder: Path,
    config: PretrainConfig | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
) -> ScaleModel:
    """Train a model on a store and save it in a folder; goes on where it stopped before."""
    config = config or PretrainConfig()
    videos = ssl_videos(store, config.ssl_split)
    identity = fingerprint(
        config, seed, store.manifest, [store.entries[i].checksum for i in videos]
    )
    if (folder / "model.json").is_file() and read_card(folder).fingerprint == identity:
        return load_model(folder)[0]
    clips = _clips_to_learn_from(store, videos, config)
    folder.mkdir(parents=True, exist_ok=True)
    run = _Run(clips, config, folder, identity, seed=seed, device=find_device(device))
    run.resume()
    run.train()
    card = ModelCard(
        dim=store.manifest.backbone.dim,
        model=config.model,
        training=to_mapping(config),
        backbone=to_mapping(store.manifest.backbone),
        videos=len(videos),
        split=config.ssl_split,
        seed=seed,
        fingerprint=identity,
    )
    save_model(run.model, card, folder)
    (folder / "progress.safetensors").unlink(missing_ok=True)
    return run.model.to("cpu").eval()


def _clips_to_learn_from(
    store: FeatureStore, videos: np.ndarray, config: PretrainConfig
) -> VideoClips:
    if len(videos) < 2:
        raise TrainingError(f"contrast needs at least 2 videos to learn from, got {len(videos)}")
    available = store.random.per_video
    if available < 2 * config.clips_per_set:
        raise TrainingError(
            f"two sets of {config.clips_per_set} need {2 * config.clips_per_set} clips of a video, "
            f"the store has {available}; use fewer clips per set or extract more"
        )
    model = config.model
    return read_clips(store, "random", videos, boxes=model.boxes, box_numbers=model.box_numbers)


class _Run:
    """A training run in memory. All chance of a step comes from the seed and the step's number."""

    def __init__(
        self,
        clips: VideoClips,
        config: PretrainConfig,
        folder: Path,
        identity: str,
        *,
        seed: int,
        device: torch.device,
    ) -> None:
        self.clips, self.config, self.folder = clips, config, folder
        self.identity, self.seed, self.device = identity, seed, device
        self.steps_per_epoch = -(-len(clips) // config.batch)
        self.epochs = max(config.epochs, -(-config.min_steps // self.steps_per_epoch))
        self.steps = self.epochs * self.steps_per_epoch
        self.epoch = 0
        torch.manual_seed(seed)
        self.model = ScaleModel(clips.features.shape[-1], config.model)
        if config.standardise:
            self.model.encoder.standardise_by(*feature_statistics(clips.features))
        self.model.to(device).train()
        self.optimiser = optim.AdamW(
            decay_groups(self.model, config.weight_decay), lr=0.0, fused=True
        )

    def resume(self) -> None:
        """Go on from the last saved epoch, if it belongs to this very run."""
        path = self.folder / "progress.safetensors"
        metrics = self.folder / "metrics.jsonl"
        try:
            with safe_open(path, "pt") as file:
                state = file.metadata()
        except (OSError, SafetensorError):
            state = {}
        if state.get("fingerprint") != self.identity:
            metrics.unlink(missing_ok=True)
            return
        load_progress(path, self.model, self.optimiser)
        self.epoch = int(state["epoch"])
        kept = metrics.read_bytes().splitlines(keepends=True)[: self.epoch]
        metrics.write_bytes(b"".join(kept))

    def train(self) -> None:
        """All epochs that are left."""
        saved = time.monotonic()
        with (
            (self.folder / "metrics.jsonl").open("ab", buffering=0) as metrics,
            bar("pre-training", self.epochs, "epochs", done=self.epoch) as advance,
        ):
            while self.epoch < self.epochs:
                line = self._epoch()
                metrics.write(msgspec.json.encode(line) + b"\n")
                self.epoch += 1
                advance(note=f"loss {line['loss']:.3f}")
                if time.monotonic() - saved > CHECKPOINT_SECONDS:
                    saved = time.monotonic()
                    self._save()

    def _save(self) -> None:
        state = {"fingerprint": self.identity, "epoch": str(self.epoch)}
        save_progress(self.folder / "progress.safetensors", self.model, self.optimiser, state)

    def _epoch(self) -> dict[str, int | float]:
        began = time.perf_counter()
        generator = torch.Generator().manual_seed(_mix(self.seed, 1, self.epoch))
        sums: dict[str, float] = {}
        batches = draw_batches(len(self.clips), self.config.batch, generator)
        for place, videos in enumerate(batches):
            step = self.epoch * self.steps_per_epoch + place
            numbers = self._step(step, self.clips.of(videos), generator)
            for name, value in numbers.items():
                sums[name] = sums.get(name, 0.0) + value * len(videos) / len(self.clips)
        return {"epoch": self.epoch + 1, **sums, "seconds": time.perf_counter() - began}

    def _step(self, step: int, clips: VideoClips, generator: torch.Generator) -> dict[str, float]:
        config = self.config
        torch.manual_seed(_mix(self.seed, 2, step))  # for dropout
        rate = learning_rate(step, self.steps, peak=config.learning_rate, warmup=config.warmup)
        for group in self.optimiser.param_groups:
            group["lr"] = rate
        per_set = draw_set_size(config.fewest_per_set, config.clips_per_set, generator)
        pair = draw_set_pair(clips, per_set, config.mask_ratio, generator, rule=config.mask_rule)
        losses: ScaleLosses = self.model.losses(
            pair.features.to(self.device), pair.boxes.to(self.device), pair.masked.to(self.device)
        )
        self.optimiser.zero_grad(set_to_none=True)
        losses.total.backward()
        largest = config.clip_gradient or float("inf")
        norm = nn.utils.clip_grad_norm_(self.model.parameters(), largest)
        if not bool(torch.isfinite(losses.total)):
            raise TrainingError(f"the loss is not a finite number at step {step}; lower the rate")
        self.optimiser.step()
        return {
            "loss": losses.total.item(),
            "masked_clip": losses.masked_clip.item(),
            "set_contrast": losses.set_contrast.item(),
            "masked_clip_accuracy": losses.masked_clip_accuracy.item(),
            "set_accuracy": losses.set_accuracy.item(),
            "gradient_norm": float(norm),
            "learning_rate": rate,
        }


def _mix(*numbers: int) -> int:
    """One seed from several numbers, different for different ones."""
    return int(np.random.SeedSequence(numbers).generate_state(1, np.uint64)[0] >> np.uint64(1))
