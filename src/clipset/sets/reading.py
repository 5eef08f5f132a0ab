"""Reading clips as a model wants to see them: which backbones, in what way, with which boxes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor
from torch.nn.functional import pad

from clipset.backbones.registry import BackboneSpec
from clipset.errors import StoreError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore, Manifest
from clipset.sets.batch import ClipBatch
from clipset.sets.box_coordinates import BoxKind, model_boxes

Rows = Int[np.ndarray, "N V"]
Read = Callable[[Kind, Int[np.ndarray, " N"]], ClipBatch]  # the clips of some videos of a store


@runtime_checkable
class ModelInput(Protocol):
    """What a model wants to be shown; a ModelConfig says so, and so does a SetEncoder."""

    @property
    def features(self) -> str:
        """Nothing (the first backbone), one (a), side by side (a+b), or a mixed set (a,b)."""

    @property
    def bins_as_clips(self) -> bool:
        """Whether each time bin of a clip is a clip of its own."""

    @property
    def boxes(self) -> BoxKind:
        """What boxes are relative to."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClipForm:
    """How a store's rows become clips: of which backbones (None: the first), in what way.

    `layers` says how many each backbone's features have; only time bins have to know.
    """

    names: tuple[str | None, ...] = (None,)
    mixed: bool = False
    bins: int = 1
    layers: tuple[int, ...] = ()
    boxes: BoxKind = "paper"

    def specs(self, manifest: Manifest) -> tuple[BackboneSpec, ...]:
        """The backbones of a store that are looked at."""
        return tuple(manifest.backbones[manifest.place_of(name)] for name in self.names)

    def dims(self, manifest: Manifest) -> tuple[int, ...]:
        """The widths of the features of a mixed set; none if there is one kind of features."""
        return self._widths(manifest) if self.mixed else ()

    def dim(self, manifest: Manifest) -> int:
        """How wide the features of all clips are."""
        widths = self._widths(manifest)
        return max(widths) if self.mixed else sum(widths)

    def _widths(self, manifest: Manifest) -> tuple[int, ...]:
        return tuple(spec.dim // self.bins for spec in self.specs(manifest))

    def clips(
        self,
        features: Sequence[Float[np.ndarray, "N V _"]],
        boxes: Float[np.ndarray, "N V 7"],
        durations: Float[np.ndarray, " N"],
        valid: Bool[np.ndarray, "N V"] | None = None,
    ) -> ClipBatch:
        """Stored features, one array for each backbone, and stored boxes as a model sees them."""
        rows = [torch.from_numpy(each) for each in features]
        there = None if valid is None else torch.from_numpy(valid)
        if self.bins > 1:
            rows = [
                split_bins(each, self.bins, n) for each, n in zip(rows, self.layers, strict=True)
            ]
            boxes = split_boxes(boxes, self.bins)
            there = None if there is None else there.repeat_interleave(self.bins, dim=1)
        where = torch.from_numpy(model_boxes(boxes, durations, self.boxes))
        if there is not None:
            where[~there] = 0.0
            rows = [torch.where(there[..., None], each, 0.0) for each in rows]
        if self.mixed:
            return mix(rows, where, there)
        return ClipBatch(rows[0] if len(rows) == 1 else torch.cat(rows, -1), where, valid=there)


def form_for(manifest: Manifest, wanted: ModelInput | None) -> ClipForm:
    """How a model wants to see a store; without a model, the first backbone's clips."""
    if wanted is None:
        return ClipForm()
    mixed = "," in wanted.features
    names = parse_features(wanted.features) if wanted.features else (None,)
    form = ClipForm(names=tuple(names), mixed=mixed, boxes=wanted.boxes)
    specs = form.specs(manifest)
    if not wanted.bins_as_clips:
        return form
    bins = sorted({spec.time_bins for spec in specs})
    if bins == [1] or len(bins) > 1:
        named = ", ".join(f"{spec.name} {spec.time_bins}" for spec in specs)
        raise StoreError(
            f"bins_as_clips needs features with the same time bins, at least 2; the store has "
            f"{named}; extract with --time-bins, or leave bins_as_clips out"
        )
    return ClipForm(
        names=form.names,
        mixed=mixed,
        bins=bins[0],
        layers=tuple(max(len(spec.layers), 1) for spec in specs),
        boxes=form.boxes,
    )


def reader_for(store: FeatureStore, wanted: ModelInput | None = None) -> Read:
    """What gives the clips of some videos of a store, by their place in it, to a model."""
    form = form_for(store.manifest, wanted)
    return lambda kind, videos: _read(store, kind, videos, form)


def read_clips(
    store: FeatureStore,
    kind: Kind,
    videos: Int[np.ndarray, " N"],
    backbone: str | None = None,
    *,
    boxes: BoxKind = "paper",
) -> ClipBatch:
    """Read the clips of some videos of a store (by their place in it) as float32.

    `backbone` is one of the store's, or several with their features side by side ("a+b"); None is
    the first. `reader_for` reads what a model wants.
    """
    names = (None,) if backbone is None else parse_features(backbone)
    form = ClipForm(names=names, boxes=boxes)
    return _read(store, kind, videos, form)


def parse_features(features: str) -> tuple[str, ...]:
    """The backbones in a setting such as "a+b" or "a,b"."""
    names = tuple(name.strip() for name in features.split("," if "," in features else "+"))
    plain = not ("," in features and "+" in features)
    if not plain or not all(names) or len(set(names)) < len(names):
        raise StoreError(
            f"features must be different backbones, such as a+b (side by side) or a,b (one set), "
            f"got {features!r}"
        )
    return names


def mix(
    rows: Sequence[Float[Tensor, "N V _"]],
    boxes: Float[Tensor, "N V X"],
    valid: Bool[Tensor, "N V"] | None,
) -> ClipBatch:
    """The clips once for each backbone, one backbone's after the other's.

    Features narrower than the widest end with zeros; `sources` numbers the backbones.
    """
    dims = tuple(each.shape[-1] for each in rows)
    padded = [pad(each, (0, max(dims) - dim)) for each, dim in zip(rows, dims, strict=True)]
    numbers = torch.arange(len(rows)).repeat_interleave(boxes.shape[1])
    return ClipBatch(
        torch.cat(padded, dim=1),
        boxes.repeat(1, len(rows), 1),
        sources=numbers.expand(len(boxes), -1).clone(),
        valid=None if valid is None else valid.repeat(1, len(rows)),
        dims=dims,
    )


def split_bins(features: Float[Tensor, "N V D"], bins: int, layers: int) -> Float[Tensor, "N W E"]:
    """The features of each time bin of each clip; a bin keeps all layers."""
    if features.shape[-1] % (bins * layers):
        raise StoreError(
            f"features of {features.shape[-1]} numbers are not {layers} layers of {bins} time bins"
        )
    parts = features.unflatten(-1, (layers, bins, -1))  # (N, V, L, bins, D)
    found: Tensor = parts.transpose(2, 3).flatten(3).flatten(1, 2)  # (N, V bins, L D)
    return found


def split_boxes(boxes: Float[np.ndarray, "N V 7"], bins: int) -> Float[np.ndarray, "N W 7"]:
    """Stored boxes of even parts of each clip's time."""
    edges = np.arange(bins + 1, dtype=np.float32) / np.float32(bins)
    times = boxes[..., :1] * (1 - edges) + boxes[..., 1:2] * edges  # (N, V, bins + 1)
    parts = np.repeat(boxes[:, :, None], bins, axis=2)  # (N, V, bins, 7)
    parts[..., 0], parts[..., 1] = times[..., :-1], times[..., 1:]
    return parts.reshape(len(boxes), -1, boxes.shape[-1])


def _read(
    store: FeatureStore, kind: Kind, videos: Int[np.ndarray, " N"], form: ClipForm
) -> ClipBatch:
    table = store.table(kind)
    rows = table.of(videos)  # (N, V)
    valid = rows >= 0 if (rows < 0).any() else None
    stands = np.where(rows < 0, rows[:, :1], rows)  # filler must not widen the clips' extent
    ids = [store.ids[video] for video in videos]
    features = [read_rows(store, kind, stands, name, ids) for name in form.names]
    return form.clips(features, table.boxes[stands], store.durations[videos], valid)


def read_rows(
    store: FeatureStore, kind: Kind, rows: Rows, name: str | None, ids: Sequence[str]
) -> Float[np.ndarray, "N V D"]:
    """Some rows of one backbone as float32; an error names the video that they are of."""
    features: Float[np.ndarray, "N V D"]
    features = store.table(kind, name).features[rows].astype(np.float32)
    if not np.isfinite(features).all():
        bad = int((~np.isfinite(features)).any(axis=(1, 2)).argmax())
        raise StoreError(f"the features of {ids[bad]!r} are not finite numbers")
    return features
