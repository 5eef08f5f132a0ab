"""clipset inside scikit-learn: transformers for a Pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.base import ClassNamePrefixFeaturesOutMixin as Names
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data
from torch import Generator, Tensor, nn, optim

from clipset.data.catalog import Catalog, Video
from clipset.errors import VideoError
from clipset.inference.run import TrainedRun, load_run
from clipset.model.config import ModelConfig
from clipset.model.scale import ScaleModel
from clipset.representation import PARTS, Part, encode_clips
from clipset.sets.batch import ClipBatch, feature_statistics
from clipset.sets.sampling import SetPair, draw_batches, draw_mask, draw_set_pair
from clipset.training.optim import decay_groups, learning_rate

BOX = 6  # numbers that say where a clip is


class VideoEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Paths of videos in, vectors out, as a run represents its own videos.

    X is a sequence of paths. There is nothing to fit; a video that cannot be read is an error.
    `backbone` is that of `load_run`.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        parts: Sequence[Part] = PARTS,
        device: str = "auto",
        workers: int | None = None,
        backbone: str | None = None,
    ) -> None:
        self.run = run
        self.parts = parts
        self.device = device
        self.workers = workers
        self.backbone = backbone

    def fit(self, X: Any, y: Any = None) -> VideoEmbedder:
        """Nothing to learn: the run has learned already."""
        del X, y
        return self

    def transform(self, X: Any) -> Float[np.ndarray, "N R"]:
        """One vector for each path."""
        paths = [Path(path) for path in np.asarray(X, dtype=object).ravel().tolist()]
        once = dict.fromkeys(map(str, paths))
        videos = tuple(Video(id=path, path=Path(path)) for path in once)
        found = self._open().embed(Catalog(name="videos", videos=videos), parts=tuple(self.parts))
        for path, reason in found.failed.items():
            raise VideoError(f"{path}: {reason}; take it out of X")
        rows = {path: row for row, path in enumerate(found.video_ids)}
        vectors: Float[np.ndarray, "N R"] = found.pooled[[rows[str(path)] for path in paths]]
        return vectors

    def _open(self) -> TrainedRun:
        wanted = (str(self.run), self.device, self.workers, self.backbone)
        opened: tuple[object, TrainedRun] | None = getattr(self, "_opened", None)
        if opened is None or opened[0] != wanted:
            opened = (
                wanted,
                load_run(
                    self.run, device=self.device, workers=self.workers, backbone=self.backbone
                ),
            )
            self._opened = opened
        return opened[1]

    def __getstate__(self) -> dict[str, Any]:
        """Without the open run: a loaded backbone is not to be copied."""
        state: dict[str, Any] = super().__getstate__()
        return {name: value for name, value in state.items() if name != "_opened"}

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.two_d_array = False
        tags.input_tags.string = True
        tags.requires_fit = False
        return tags


class ScaleFeatures(Names, TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Features of clips in, vectors out: pre-trains the set transformer on X, without labels.

    A row of X is a video: its `clips` clips one after the other, each with its feature. With
    `boxes`, six numbers follow each feature and say where the clip is (top, left, start, bottom,
    right, end, as parts of the video); otherwise the clips are taken to follow one another in time.
    The vector of a video is the mean of its standardised features, next to its set token.

    With fewer than four clips, the two sets of a video are the same clips, hidden differently.
    """

    def __init__(
        self,
        clips: int = 16,
        *,
        boxes: bool = False,
        width: int = 256,
        layers: int = 2,
        epochs: int = 200,
        batch: int = 512,
        clips_per_set: int = 8,
        mask_ratio: float = 0.25,
        learning_rate: float = 3e-4,
        random_state: Any = None,
    ) -> None:
        self.clips = clips
        self.boxes = boxes
        self.width = width
        self.layers = layers
        self.epochs = epochs
        self.batch = batch
        self.clips_per_set = clips_per_set
        self.mask_ratio = mask_ratio
        self.learning_rate = learning_rate
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> ScaleFeatures:
        """Pre-train on the videos of X; labels are not looked at."""
        del y
        X = validate_data(self, X, dtype=[np.float64, np.float32], ensure_min_samples=2)
        clips = self._clips(X.astype(np.float32))
        seed = int(check_random_state(self.random_state).randint(2**31 - 1))
        model = ModelConfig(width=self.width, layers=self.layers)
        plan = _Plan(
            epochs=self.epochs,
            batch=self.batch,
            per_set=min(self.clips_per_set, self.clips // 2),
            mask_ratio=self.mask_ratio,
            rate=self.learning_rate,
        )
        with torch.random.fork_rng(devices=[]):
            self.encoder_ = _pretrain(clips, model, plan, seed).encoder.double()
        self._n_features_out = clips.features.shape[-1] + self.width
        return self

    def transform(self, X: Any) -> Float[np.ndarray, "N R"]:
        """One vector for each video."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=[np.float64, np.float32], reset=False)
        vectors = encode_clips(self.encoder_, self._clips(X.astype(np.float64)))
        pooled: Float[np.ndarray, "N R"] = vectors.mean(dim=1).numpy()
        return pooled

    def _clips(self, X: Float[np.ndarray, "N F"]) -> ClipBatch:
        if self.clips < 1 or X.shape[1] % self.clips:
            raise ValueError(
                f"X has {X.shape[1]} features, which are not {self.clips} clips of one width; "
                f"set clips"
            )
        rows = torch.from_numpy(X).view(len(X), self.clips, -1)  # (N, V, D)
        if not self.boxes:
            return ClipBatch(rows, _in_order(rows))
        if rows.shape[-1] <= BOX:
            raise ValueError(f"a clip has {rows.shape[-1]} numbers, {BOX} of them are its box")
        return ClipBatch(rows[..., :-BOX], rows[..., -BOX:])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """How long and how fast is learned, and from what sets."""

    epochs: int
    batch: int
    per_set: int
    mask_ratio: float
    rate: float


def _in_order(rows: Float[Tensor, "N V D"]) -> Float[Tensor, "N V 6"]:
    """The boxes of clips that follow one another and show the whole frame."""
    count, clips, _ = rows.shape
    start = torch.arange(clips, dtype=rows.dtype) / clips
    low, high = torch.zeros(clips, dtype=rows.dtype), torch.ones(clips, dtype=rows.dtype)
    boxes = torch.stack([low, low, start, high, high, start + 1 / clips], dim=1)  # (V, 6)
    return boxes.expand(count, clips, BOX)


def _pretrain(clips: ClipBatch, config: ModelConfig, plan: _Plan, seed: int) -> ScaleModel:
    """The losses of the paper on clips in memory."""
    torch.manual_seed(seed)
    generator = Generator().manual_seed(seed)
    model = ScaleModel(clips.features.shape[-1], config).train()
    model.encoder.standardise_by(*feature_statistics(clips.features))
    optimiser = optim.AdamW(decay_groups(model, 1e-4), lr=0.0)
    steps = plan.epochs * -(-len(clips) // plan.batch)
    step = 0
    for _ in range(plan.epochs):
        for videos in draw_batches(len(clips), plan.batch, generator):
            for group in optimiser.param_groups:
                group["lr"] = learning_rate(step, steps, peak=plan.rate, warmup=0.05)
            pair = _draw(clips.of(videos), plan, generator)
            optimiser.zero_grad(set_to_none=True)
            model.losses(pair.features, pair.boxes, pair.masked).total.backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimiser.step()
            step += 1
    return model.eval().requires_grad_(False)


def _draw(clips: ClipBatch, plan: _Plan, generator: Generator) -> SetPair:
    if plan.per_set >= 2:
        return draw_set_pair(clips, plan.per_set, plan.mask_ratio, generator)
    count, available = clips.features.shape[:2]
    return SetPair(
        features=clips.features.expand(2, *clips.features.shape),
        boxes=clips.boxes.expand(2, *clips.boxes.shape),
        masked=draw_mask(count, available, plan.mask_ratio, generator),
    )
