"""Pre-training end to end: videos in, a trained backbone and a trained set transformer out.

The loop is that of pre-training on a store. Clips are decoded on the way, and the backbone is part
of the model.
"""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.backbones.trained import BackboneHeader, write_backbone
from clipset.checksums import sha256_of_file
from clipset.config import fingerprint, to_mapping
from clipset.data.catalog import Catalog, Video
from clipset.end_to_end.model import EndToEndConfig, EndToEndModel, check_memory, count_tokens
from clipset.end_to_end.video_source import Unreadable, VideoSource
from clipset.errors import BackboneError, TrainingError
from clipset.features.config import ExtractConfig
from clipset.features.decode_pool import ClipDecoder
from clipset.features.extract import decode_request, plan_store
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
        data = processes.run(
            lambda: DecodedVideos(catalog, folder, extraction, config, end_to_end, processes, seed)
        )
        with closing(
            ClipDecoder(
                replace(decode_request(data.manifest), regular=False),
                workers=extraction.num_workers,
                timeout=extraction.timeout_seconds,
                max_ahead=_largest_shard(len(data.members), config, processes),
            )
        ) as data.decoder:
            return run_pretraining(data, folder, config, processes)


def _largest_shard(num_videos: int, config: PretrainConfig, processes: ProcessGroup) -> int:
    """The videos of a batch that one rank decodes."""
    return -(-min(config.batch_size, num_videos) // processes.world_size)


class DecodedVideos(TrainingVideos):
    """Training videos that are decoded on the way, and the backbone that is trained on them."""

    members: list[Video]
    decoder: ClipDecoder

    def __init__(
        self,
        catalog: Catalog,
        folder: Path,
        extraction: ExtractConfig,
        config: PretrainConfig,
        end_to_end: EndToEndConfig,
        processes: ProcessGroup,
        seed: int,
    ) -> None:
        """Raises what would fail later."""
        choose_precision(config.precision, processes.device)
        if config.validate_every:
            raise TrainingError(
                "validate_every needs the stored clips of a store, end to end there are none; set "
                "it to 0"
            )
        if config.batch_from == "similar":
            raise TrainingError(
                "batches of similar videos need the stored features of a store, end to end there "
                "are none; set batch_from to auto, all or group"
            )
        self.config, self.end_to_end = config, end_to_end
        has_train = "train" in catalog.splits
        only_train = has_train and config.ssl_split == "train"
        self.members = [v for v in catalog if not only_train or v.split == "train"]
        self.is_train = np.array([not has_train or v.split == "train" for v in self.members])
        check_batches(self.members, config, processes)
        manifest, network = plan_store(extraction, self.members)
        if not isinstance(network, VideoMAE):
            raise BackboneError(
                f"{manifest.backbone.name} cannot be trained end to end: it is no video "
                f"transformer whose tokens can be dropped; name one with --backbone: videomae_b, "
                f"or a file backbone.safetensors of `clipset pretrain-backbone`"
            )
        num_clips = 2 * config.clips_per_set  # two sets of each video
        sampling = replace(manifest.sampling, num_clips=num_clips, clips_per_minute=0.0)
        self.manifest = replace(manifest, sampling=sampling, made_by={})
        self.network, self.spec = network, manifest.backbone
        self.unreadable = Unreadable(folder)
        self.settings = weight_settings(config) | {
            "end_to_end": {
                "drop": end_to_end.drop,
                "backbone_lr_scale": config.backbone_lr_scale,
                "clips": fingerprint(self.manifest),
            }
        }
        ids = [video.id for video in self.members]
        self.card = ModelCard(
            dim=self.spec.dim,
            model=config.model,
            training=to_mapping(config),
            backbone=to_mapping(self.spec),
            videos=len(self.members),
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
        return path.is_file() and sha256_of_file(path) == weights.get("sha256")

    def start(self, source: Any, **options: Any) -> EndToEndRun:
        """The training itself."""
        return EndToEndRun(source, self, **options)


class EndToEndRun(PretrainingRun):
    """A pre-training whose model begins with the backbone."""

    source: VideoSource
    model: EndToEndModel

    def __init__(self, source: VideoSource, data: DecodedVideos, **options: Any) -> None:
        self.data = data
        super().__init__(source, **options)
        self.settings = data.settings
        self.shard_size = _largest_shard(len(source), self.config, self.processes)
        self.processes.run(
            lambda: check_memory(
                self.model,
                data.spec,
                num_videos=self.shard_size,
                num_clips=source.max_clips,
                drop=data.end_to_end.drop,
                device=self.device,
            )
        )

    def _init_model(self) -> EndToEndModel:
        model = EndToEndModel(
            self.data.spec,
            self.data.network,
            self.scale,
            is_trained=self.config.backbone_lr_scale > 0,
            checkpointing=self.data.end_to_end.checkpointing,
        )
        return model.to(self.device).train()

    def _parameter_groups(self) -> list[ParamGroup]:
        decay, lr_scale = self.config.weight_decay, self.config.backbone_lr_scale
        groups = decay_groups(self.scale, decay)
        if lr_scale:
            groups += decay_groups(self.model.vit, decay, lr_scale=lr_scale)
        return groups

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
        sample = self.source.sample(STATISTICS_VIDEOS)
        config = replace(self.config, batch_size=self.shard_size)
        for _, pair in sample.batches(config, generator, SINGLE_PROCESS):
            if len(pair):
                inputs = tensors_of(pair, self.device)
                features = self.model.features(inputs["pixels"], inputs.get("visible"))
                statistics.update(features.flatten(0, 2).cpu())
        self._check_enough_read()
        return statistics.mean, statistics.std

    def _check_enough_read(self) -> None:
        reasons, num_left_out = self.data.unreadable.reasons, self._count_left_out()
        if len(self.source) - num_left_out < 2:
            video_id, reason = next(iter(reasons.items()))
            raise TrainingError(
                f"{num_left_out} of {len(self.source)} videos cannot be read ({video_id}: "
                f"{reason}); pre-training needs at least 2 that can"
            )

    def _count_left_out(self) -> int:
        reasons = self.data.unreadable.reasons
        return sum(video.id in reasons for video in self.source.videos)

    def _epoch(self) -> Metrics:
        metrics = super()._epoch()
        self.data.unreadable.exchange(self.processes)
        self._check_enough_read()
        return metrics | {"unreadable": len(self.data.unreadable.reasons)}

    def _step(self, pair: SetPair | PixelPair) -> dict[str, float]:
        if not any(
            self.processes.gather_number(pair.masked.shape[1])
        ):  # no video of the batch can be read
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
        path, vit = self.folder / BACKBONE_FILE, self.model.vit
        weights = replace(self.data.spec.weights, file=BACKBONE_FILE, sha256=None)
        spec = replace(self.data.spec, name=f"{self.data.spec.name}_scale", weights=weights)
        training = {
            "method": "scale", "data": card.data, "videos": card.videos, "steps": card.steps,
            "seed": card.seed, "settings": self.settings, "fingerprint": card.fingerprint,
            "backbone": to_mapping(self.data.spec),
        }  # fmt: skip
        write_backbone(path, vit, BackboneHeader(network=vit.config, spec=spec, training=training))
        written = replace(spec, weights=replace(weights, sha256=sha256_of_file(path)))
        backbone = to_mapping(written) | {"end_to_end": self.settings["end_to_end"]}
        save_model(self.scale, replace(card, backbone=backbone), self.folder)
