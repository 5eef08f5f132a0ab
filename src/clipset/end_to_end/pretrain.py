"""Pre-training end to end: videos in, a trained backbone and a trained set transformer out.

The loop is that of pre-training on a store. Clips are decoded on the way, and the backbone is part
of the model.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.backbones.registry import BackboneSpec
from clipset.backbones.trained import BackboneHeader, write_backbone
from clipset.checksums import sha256_of_files
from clipset.config import fingerprint, to_mapping
from clipset.data.catalog import Catalog, Video
from clipset.end_to_end.memory import check_memory
from clipset.end_to_end.model import EndToEndConfig, EndToEndModel, count_tokens, require_vit
from clipset.end_to_end.video_source import Unreadable, VideoSource
from clipset.errors import TrainingError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import ClipDecoder
from clipset.features.extract import decode_request, plan_store
from clipset.features.store import Manifest
from clipset.networks.video_transformers import VideoMAE
from clipset.sets.batch import RunningStatistics
from clipset.sets.sampling import PixelPair, SetPair
from clipset.training.batches import check_batches
from clipset.training.card import ModelCard
from clipset.training.checkpoint import ScaleModel, read_card, save_model
from clipset.training.config import PretrainConfig, weight_settings
from clipset.training.data import tensors_of
from clipset.training.distributed import SINGLE_PROCESS, ProcessGroup, join_process_group
from clipset.training.monitor import Metrics
from clipset.training.optim import ParamGroup, choose_precision, decay_groups
from clipset.training.pretrain import TrainingVideos, run_pretraining
from clipset.training.trainer import PretrainingRun

BACKBONE_FILE = "vit.safetensors"
STATISTICS_VIDEOS = 256  # whose features are measured before the first step


def pretrain_end_to_end(
    catalog: Catalog,
    folder: Path,
    extraction: ExtractConfig,
    config: PretrainConfig | None = None,
    end_to_end: EndToEndConfig | None = None,
    *,
    seed: int = 0,
    device: str = "auto",
) -> ScaleModel:
    """Train a backbone and a set transformer on videos; an interrupted training is resumed.

    `extraction` names the backbone and says how clips are cut. The folder gets the model and the
    trained backbone, `vit.safetensors`, which `clipset extract --backbone` loads.
    """
    config, end_to_end = config or PretrainConfig(), end_to_end or EndToEndConfig()
    with join_process_group(device) as processes:
        videos = processes.run(lambda: _training_videos(catalog, config, processes))
        manifest, network = processes.run(lambda: _plan(extraction, videos, config))
        with closing(
            ClipDecoder(
                replace(decode_request(manifest), regular=False),
                workers=extraction.num_workers,
                timeout=extraction.timeout_seconds,
                max_ahead=_largest_shard(len(videos), config, processes),
            )
        ) as decoder:
            data = DecodedVideos(
                catalog, videos, manifest, network, decoder, folder, config, end_to_end, seed
            )
            return run_pretraining(data, folder, config, processes)


def _training_videos(
    catalog: Catalog, config: PretrainConfig, processes: ProcessGroup
) -> list[Video]:
    """The videos to learn from; raises what would fail later."""
    choose_precision(config.precision, processes.device)
    if config.validate_every:
        raise TrainingError(
            "validate_every needs the stored clips of a store, end to end there are none; set it "
            "to 0"
        )
    is_split = config.ssl_split == "train" and "train" in catalog.splits
    videos = [video for video in catalog if not is_split or video.split == "train"]
    check_batches(videos, config, processes)
    return videos


def _largest_shard(num_videos: int, config: PretrainConfig, processes: ProcessGroup) -> int:
    """The videos of a batch that one rank decodes."""
    return -(-min(config.batch_size, num_videos) // processes.world_size)


def _plan(
    extraction: ExtractConfig, videos: Sequence[Video], config: PretrainConfig
) -> tuple[Manifest, VideoMAE]:
    """How clips are cut, as for a store but with two sets of each video, and the backbone."""
    manifest, network = plan_store(extraction, videos)
    vit = require_vit(manifest.backbone, network)
    num_clips = 2 * config.clips_per_set
    sampling = replace(manifest.sampling, num_clips=num_clips, clips_per_minute=0.0)
    return replace(manifest, sampling=sampling, made_by={}), vit


class DecodedVideos(TrainingVideos):
    """Training videos that are decoded on the way, and the backbone that is trained on them."""

    def __init__(
        self,
        catalog: Catalog,
        videos: Sequence[Video],
        manifest: Manifest,
        network: VideoMAE,
        decoder: ClipDecoder,
        folder: Path,
        config: PretrainConfig,
        end_to_end: EndToEndConfig,
        seed: int,
    ) -> None:
        self.members, self.spec, self.network = videos, manifest.backbone, network
        self.decoder, self.config, self.end_to_end = decoder, config, end_to_end
        self.unreadable = Unreadable(folder)
        has_train = "train" in catalog.splits
        self.is_train = np.array([not has_train or video.split == "train" for video in videos])
        self.settings = weight_settings(config) | {
            "end_to_end": {
                "drop": end_to_end.drop,
                "backbone_lr_scale": config.backbone_lr_scale,
                "clips": fingerprint(manifest),
            }
        }
        ids = [video.id for video in videos]
        self.card = ModelCard(
            dim=self.spec.dim,
            model=config.model,
            training=to_mapping(config),
            backbone=to_mapping(self.spec),
            videos=len(videos),
            split=config.ssl_split,
            seed=seed,
            fingerprint=fingerprint(self.settings, seed, ids),
            data=catalog.name,
            splits=catalog.splits,
        )

    def open(self, videos: Int[np.ndarray, " W"], groups: Int[Tensor, " W"] | None) -> VideoSource:
        """Some of the videos, to be decoded when they are needed."""
        return VideoSource(
            [self.members[index] for index in videos],
            self.decoder,
            self.config.model,
            self.unreadable,
            dim=self.spec.dim,
            num_tokens=count_tokens(self.network, self.spec.frames, self.spec.size),
            drop=self.end_to_end.drop,
            seed=self.card.seed,
            groups=groups,
        )

    def is_complete(self, folder: Path) -> bool:
        """Whether the backbone beside a finished model is the one that was trained with it."""
        path, weights = folder / BACKBONE_FILE, read_card(folder).backbone.get("weights") or {}
        return path.is_file() and sha256_of_files([path]) == weights.get("sha256")

    def start(self, source: Any, **options: Any) -> EndToEndRun:
        """The training itself."""
        return EndToEndRun(source, self, **options)


class EndToEndRun(PretrainingRun):
    """A pre-training whose model begins with the backbone."""

    def __init__(self, source: VideoSource, data: DecodedVideos, **options: Any) -> None:
        self.videos, self.data = source, data
        super().__init__(source, **options)
        self.settings = data.settings
        self.shard_size = _largest_shard(len(source), self.config, self.processes)
        self.processes.run(
            lambda: check_memory(
                self.whole,
                data.spec,
                num_videos=self.shard_size,
                num_clips=source.max_clips,
                drop=data.end_to_end.drop,
                device=self.device,
            )
        )

    def _init_model(self) -> EndToEndModel:
        self.whole = EndToEndModel(
            self.data.spec,
            self.data.network,
            self.scale,
            is_trained=self.config.backbone_lr_scale > 0,
            checkpointing=self.data.end_to_end.checkpointing,
        )
        return self.whole.to(self.device).train()

    def _parameter_groups(self) -> list[ParamGroup]:
        decay, lr_scale = self.config.weight_decay, self.config.backbone_lr_scale
        groups = decay_groups(self.scale, decay)
        return groups + (decay_groups(self.whole.vit, decay, lr_scale=lr_scale) if lr_scale else [])

    def resume(self) -> None:
        """Continue from the newest checkpoint, without the videos that could not be read."""
        super().resume()
        if self.epoch:
            self.data.unreadable.read()
        elif self.processes.is_main:
            self.data.unreadable.path.unlink(missing_ok=True)  # of an earlier training

    @torch.no_grad()
    def _measure_features(self) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
        """Mean and standard deviation of the features of some videos before the first step."""
        statistics = RunningStatistics()
        generator = torch.Generator().manual_seed(self.seed)
        sample = self.videos.sample(STATISTICS_VIDEOS)
        config = replace(self.config, batch_size=self.shard_size)
        for _, pair in sample.batches(config, generator, SINGLE_PROCESS):
            if len(pair):
                inputs = tensors_of(pair, self.device)
                features = self.whole.features(inputs["pixels"], inputs.get("visible"))
                statistics.update(features.flatten(0, 2).cpu())
        self._check_enough_read()
        return statistics.mean, statistics.std

    def _check_enough_read(self) -> None:
        reasons, num_left_out = self.data.unreadable.reasons, self._count_left_out()
        if len(self.videos) - num_left_out < 2:
            video_id, reason = next(iter(reasons.items()))
            raise TrainingError(
                f"{num_left_out} of {len(self.videos)} videos cannot be read ({video_id}: "
                f"{reason}); pre-training needs at least 2 that can"
            )

    def _count_left_out(self) -> int:
        reasons = self.data.unreadable.reasons
        return sum(video.id in reasons for video in self.videos.videos)

    def _epoch(self) -> Metrics:
        metrics = super()._epoch()
        self.data.unreadable.exchange(self.processes)
        self._check_enough_read()
        return metrics | {"unreadable": len(self.data.unreadable.reasons)}

    def _step(self, pair: SetPair | PixelPair) -> dict[str, float]:
        if not self.processes.sum(pair.masked.shape[1]):  # no video of the batch can be read
            self.optimization.num_done += 1
            return {}
        try:
            return super()._step(pair)
        except (torch.OutOfMemoryError, RuntimeError) as error:
            if "out of memory" in str(error) or "can't allocate memory" in str(error):
                raise TrainingError(
                    f"a batch of {pair.masked.shape[1]} videos does not fit in memory; use a "
                    f"smaller batch_size, drop more tokens or use smaller clips"
                ) from None
            raise

    def _write_model(self, card: ModelCard) -> None:
        """Write the trained backbone, then the set transformer."""
        card = replace(card, videos=card.videos - self._count_left_out())
        spec = self._write_backbone(card)
        backbone = to_mapping(spec) | {"end_to_end": self.data.settings["end_to_end"]}
        card = replace(card, backbone=backbone)
        save_model(self.scale, card, self.folder)

    def _write_backbone(self, card: ModelCard) -> BackboneSpec:
        path, spec = self.folder / BACKBONE_FILE, self.data.spec
        weights = replace(spec.weights, file=BACKBONE_FILE, sha256=None)
        spec = replace(spec, name=f"{spec.name}_scale", weights=weights)
        training = {
            "method": "scale", "data": card.data, "videos": card.videos, "steps": card.steps,
            "seed": card.seed, "settings": self.settings, "fingerprint": card.fingerprint,
            "backbone": to_mapping(self.data.spec),
        }  # fmt: skip
        vit = self.whole.vit
        write_backbone(path, vit, BackboneHeader(network=vit.config, spec=spec, training=training))
        return replace(spec, weights=replace(weights, sha256=sha256_of_files([path])))
