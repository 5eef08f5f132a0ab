"""What a probe learns from and what it is judged by; the test labels are out of its reach."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.errors import ProbeError
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.sets.clips import VideoClips, read_clips
from clipset.videos.catalog import Catalog, Video


@dataclass(frozen=True, slots=True)
class Labelled:
    """Videos with their classes: random clips to learn from, regular clips to be judged by."""

    random: VideoClips
    regular: VideoClips
    classes: Int[Tensor, " N"]
    groups: tuple[str | None, ...]

    def __len__(self) -> int:
        return len(self.classes)

    def only(self, videos: Int[Tensor, " M"]) -> Labelled:
        """Some of the videos."""
        return Labelled(
            self.random.of(videos),
            self.regular.of(videos),
            self.classes[videos],
            tuple(self.groups[int(video)] for video in videos),
        )


class HeldOut:
    """The test videos: their clips for everyone, their classes only for the final score."""

    def __init__(self, ids: tuple[str, ...], clips: VideoClips, classes: Int[Tensor, " M"]) -> None:
        self.ids, self.clips = ids, clips
        self._classes = classes

    def __len__(self) -> int:
        return len(self.ids)

    def judge(self, probabilities: Float[Tensor, "M C"]) -> Int[np.ndarray, "M 2"]:
        """True and predicted class of each video. Called once for each finished probe."""
        return torch.stack([self._classes, probabilities.argmax(dim=1)], dim=1).numpy()


@dataclass(frozen=True, slots=True)
class Problem:
    """A classification problem on a store: the names of the classes, the train and test videos."""

    classes: tuple[str, ...]
    train: Labelled
    test: HeldOut
    split: str = "test"  # what the test videos' split is called


def pose_problem(
    store: FeatureStore, catalog: Catalog | None = None, model: ModelConfig | None = None
) -> Problem:
    """The problem that a catalog's labels and splits pose; judged on `test`, else on `val`.

    Boxes are those of the model that will see the clips.
    """
    known = {video.id: video for video in catalog or store.catalog}
    videos = {place: known[id] for place, id in enumerate(store.ids) if id in known}
    labelled = {place: video for place, video in videos.items() if video.label is not None}
    train = {place: video for place, video in labelled.items() if video.split == "train"}
    judged = "test" if any(video.split == "test" for video in labelled.values()) else "val"
    test = {place: video for place, video in labelled.items() if video.split == judged}
    _refuse_hopeless(labelled, train, test)
    classes = tuple(sorted({video.label or "" for video in train.values()}))
    strangers = sorted({v.label or "" for v in test.values()} - set(classes))
    if strangers:
        raise ProbeError(
            f"no training video shows {strangers[0]!r}, which the test split has; "
            f"give it one or take it out of the catalog"
        )
    numbers = {name: number for number, name in enumerate(classes)}
    model = model or ModelConfig()
    read = partial(read_clips, store, boxes=model.boxes, box_numbers=model.box_numbers)
    places = np.array(list(test))
    return Problem(
        classes=classes,
        train=Labelled(
            random=read("random", np.array(list(train))),
            regular=read("regular", np.array(list(train))),
            classes=torch.tensor([numbers[v.label or ""] for v in train.values()]),
            groups=tuple(video.group for video in train.values()),
        ),
        test=HeldOut(
            ids=tuple(video.id for video in test.values()),
            clips=read("regular", places),
            classes=torch.tensor([numbers[v.label or ""] for v in test.values()]),
        ),
        split=judged,
    )


def _refuse_hopeless(
    labelled: dict[int, Video], train: dict[int, Video], test: dict[int, Video]
) -> None:
    if not labelled:
        raise ProbeError("no video that could be read has a label; probes need labels")
    for split, videos in (("train", train), ("test", test)):
        if not videos:
            raise ProbeError(f"no labelled video that could be read is in the split {split!r}")
    if len({video.label for video in labelled.values()}) < 2:
        raise ProbeError("all videos have the same label; there is nothing to tell apart")
