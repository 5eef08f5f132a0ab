"""The clips of some videos as tensors: what every later stage takes from a store."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from clipset.backbones.registry import BackboneSpec
from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.sets.boxes import BoxKind, model_boxes

Rows = Int[np.ndarray, "N V"]
START, END = 2, 5  # where `paper_boxes` puts the times of a clip


@dataclass(frozen=True, slots=True)
class VideoClips:
    """All clips of one kind of N videos, in memory, ready for the model.

    `present` is False where a video has fewer clips than another and zeros fill up; None if all
    have the same number. `sources` says which backbone saw a clip, where several did.
    """

    features: Float[Tensor, "N V D"]
    boxes: Float[Tensor, "N V X"]
    sources: Int[Tensor, "N V"] | None = None
    present: Bool[Tensor, "N V"] | None = None

    def __len__(self) -> int:
        return len(self.features)

    @property
    def counts(self) -> Int[Tensor, " N"]:
        """How many clips each video has."""
        if self.present is None:
            return torch.full((len(self),), self.features.shape[1], device=self.features.device)
        return self.present.sum(dim=1)

    def of(self, videos: Int[Tensor, " B"] | slice) -> VideoClips:
        """The clips of some of the videos."""
        return self._each(lambda part: part[videos])

    def to(self, device: torch.device) -> VideoClips:
        """The same clips on another device."""
        return self._each(lambda part: part.to(device))

    def _each(self, change: Callable[[Tensor], Tensor]) -> VideoClips:
        return VideoClips(
            change(self.features),
            change(self.boxes),
            None if self.sources is None else change(self.sources),
            None if self.present is None else change(self.present),
        )

    def pick(self, clips: Int[Tensor, "N W"]) -> VideoClips:
        """Some clips of each video, by their places; they must be present."""
        videos = torch.arange(len(self), device=clips.device)[:, None]
        sources = None if self.sources is None else self.sources[videos, clips]
        return VideoClips(self.features[videos, clips], self.boxes[videos, clips], sources)

    def fill_up(self, most: int) -> VideoClips:
        """The same clips as part of a larger table, in which a video has up to `most`."""
        more = most - self.features.shape[1]
        present = self.present
        if present is None:
            present = torch.ones(self.features.shape[:2], dtype=torch.bool)
        return VideoClips(
            pad(self.features, (0, 0, 0, more)),
            pad(self.boxes, (0, 0, 0, more)),
            None if self.sources is None else pad(self.sources, (0, more)),
            pad(present, (0, more)),
        )

    def only_present(self) -> Float[Tensor, "M D"]:
        """The features of all clips that are there, one video's after the other's."""
        return self.features.flatten(0, 1) if self.present is None else self.features[self.present]


def read_clips(
    store: FeatureStore,
    kind: Kind,
    videos: Int[np.ndarray, " N"],
    backbone: str | None = None,
    *,
    boxes: BoxKind = "paper",
    box_numbers: int = 6,
) -> VideoClips:
    """Read the clips of some videos of a store (by their place in it) as float32.

    `backbone` is one of the store's, or several with their features side by side ("a+b"); None is
    the first. `boxes` and `box_numbers` are those of the model that will see the clips.
    """
    names = [None] if backbone is None else parse_features(backbone)
    rows = store.table(kind).of(videos)  # (N, V)
    features = [_read_features(store, kind, videos, rows, name) for name in names]
    whole = features[0] if len(features) == 1 else torch.cat(features, dim=-1)
    where = _read_boxes(store, kind, videos, rows, boxes, box_numbers)
    return VideoClips(whole, where, present=_present(rows))


def read_mixed(
    store: FeatureStore,
    kind: Kind,
    videos: Int[np.ndarray, " N"],
    names: Sequence[str],
    *,
    boxes: BoxKind = "paper",
    box_numbers: int = 6,
) -> VideoClips:
    """The clips once for each backbone, one backbone's after the other's.

    Features narrower than the widest end with zeros; `sources` numbers the backbones as `names`.
    """
    if not names:
        raise StoreError(f"name at least one backbone; {store.folder} has {_names(store)}")
    rows = store.table(kind).of(videos)  # (N, V)
    features = [_read_features(store, kind, videos, rows, name) for name in names]
    widest = max(each.shape[-1] for each in features)
    padded = [pad(each, (0, widest - each.shape[-1])) for each in features]
    numbers = torch.arange(len(names)).repeat_interleave(rows.shape[1])
    present = _present(rows)
    where = _read_boxes(store, kind, videos, rows, boxes, box_numbers)
    return VideoClips(
        torch.cat(padded, dim=1),
        where.repeat(1, len(names), 1),
        sources=numbers.expand(len(rows), -1).clone(),
        present=None if present is None else present.repeat(1, len(names)),
    )


def parse_features(features: str) -> list[str]:
    """The backbones in a setting such as "a+b"."""
    names = [name.strip() for name in features.split("+")]
    if not all(names) or len(set(names)) < len(names):
        raise StoreError(f"features must be different backbones, such as a+b, got {features!r}")
    return names


def feature_width(store: FeatureStore, backbone: str | None = None) -> int:
    """How wide the features are that `read_clips` gives."""
    names = [None] if backbone is None else parse_features(backbone)
    manifest = store.manifest
    return sum(manifest.backbones[manifest.place_of(name)].dim for name in names)


def bins_as_clips(clips: VideoClips, spec: BackboneSpec) -> VideoClips:
    """Each time bin of a clip as a clip of its own, in an even part of the clip's time.

    Where a spec has several layers, a bin keeps all of them.
    """
    bins, layers = spec.time_bins, max(len(spec.layers), 1)
    if clips.features.shape[-1] != spec.dim:
        raise StoreError(
            f"{spec.name} has features of {spec.dim} numbers, these have {clips.features.shape[-1]}"
        )
    parts = clips.features.unflatten(-1, (layers, bins, -1))  # (N, V, L, bins, D)
    features = parts.transpose(2, 3).flatten(3).flatten(1, 2)  # (N, V bins, L D)
    edges = torch.arange(bins + 1, dtype=clips.boxes.dtype, device=clips.boxes.device) / bins
    start, end = clips.boxes[..., START, None], clips.boxes[..., END, None]  # (N, V, 1)
    times = torch.lerp(start, end, edges)  # (N, V, bins + 1)
    boxes = clips.boxes[:, :, None].repeat(1, 1, bins, 1)  # (N, V, bins, X)
    boxes[..., START], boxes[..., END] = times[..., :-1], times[..., 1:]
    return VideoClips(
        features,
        boxes.flatten(1, 2),
        None if clips.sources is None else clips.sources.repeat_interleave(bins, dim=1),
        None if clips.present is None else clips.present.repeat_interleave(bins, dim=1),
    )


def _read_features(
    store: FeatureStore, kind: Kind, videos: Int[np.ndarray, " N"], rows: Rows, name: str | None
) -> Float[Tensor, "N V D"]:
    table = store.table(kind, name)
    features = torch.from_numpy(table.features[rows].astype(np.float32))  # (N, V, D)
    if (rows < 0).any():
        features[torch.from_numpy(rows < 0)] = 0.0
    if not bool(torch.isfinite(features).all()):
        bad = int((~torch.isfinite(features)).flatten(1).any(dim=1).nonzero()[0])
        raise StoreError(f"the features of {store.ids[videos[bad]]!r} are not finite numbers")
    return features


def _read_boxes(
    store: FeatureStore,
    kind: Kind,
    videos: Int[np.ndarray, " N"],
    rows: Rows,
    boxes: BoxKind,
    numbers: int,
) -> Float[Tensor, "N V X"]:
    stands = np.where(rows < 0, rows[:, :1], rows)  # filler must not widen the clips' extent
    stored = store.table(kind).boxes[stands]
    where = torch.from_numpy(model_boxes(stored, store.durations[videos], boxes, numbers))
    if (rows < 0).any():
        where[torch.from_numpy(rows < 0)] = 0.0
    return where


def _present(rows: Rows) -> Bool[Tensor, "N V"] | None:
    return torch.from_numpy(rows >= 0) if (rows < 0).any() else None


def _names(store: FeatureStore) -> str:
    return ", ".join(spec.name for spec in store.manifest.backbones)


def by_count(clips: VideoClips) -> Iterator[tuple[Int[Tensor, " B"], VideoClips]]:
    """The videos in groups that have the same number of clips, without filler."""
    if clips.present is None:
        yield torch.arange(len(clips)), clips
        return
    counts = clips.counts
    for count in counts.unique().tolist():
        videos = (counts == count).nonzero().squeeze(1)
        places = clips.present[videos].nonzero()[:, 1].view(len(videos), count)
        yield videos, clips.of(videos).pick(places)


def mean_over_clips(
    vectors: Float[Tensor, "N V R"], present: Bool[Tensor, "N V"] | None
) -> Float[Tensor, "N R"]:
    """The mean over each video's clips, filler left out."""
    if present is None:
        return vectors.mean(dim=1)
    sums = torch.where(present[..., None], vectors, 0.0).sum(dim=1)
    return sums / present.sum(dim=1, keepdim=True).clamp(min=1)


def feature_statistics(
    features: Float[Tensor, "*N D"],
) -> tuple[Float[Tensor, " D"], Float[Tensor, " D"]]:
    """Mean and deviation of each channel over all clips; a channel that never changes gets 1."""
    std, mean = torch.std_mean(features.flatten(0, -2), dim=0, correction=0)
    return mean, torch.where(std > 1e-6, std, torch.ones_like(std))
