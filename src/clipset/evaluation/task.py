"""What a probe learns from and what it is judged by; the test labels are out of its reach."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor

from clipset.data.catalog import Catalog, Video
from clipset.data.splits import subset_indices
from clipset.errors import ProbeError
from clipset.features.ledger import Kind
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.progress import say
from clipset.sets.batch import ClipBatch
from clipset.sets.reading import read_clips
from clipset.training.config import PretrainConfig
from clipset.training.joint import PretrainingSetup

ReadClips = Callable[[Kind, Int[np.ndarray, " N"]], ClipBatch]


@dataclass(frozen=True, slots=True)
class LabelledVideos:
    """Videos with what is known of them: random clips to learn from, regular clips to be judged by.

    `classes` numbers the labels; where numbers are to be predicted these are in `targets`.
    """

    random: ClipBatch
    regular: ClipBatch
    classes: Int[Tensor, " N"]
    groups: tuple[str | None, ...]
    targets: Float[Tensor, " N"] | None = None

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def wanted(self) -> Int[Tensor, " N"] | Float[Tensor, " N"]:
        """What a probe has to say: the classes, or the numbers."""
        return self.classes if self.targets is None else self.targets

    def only(self, videos: Int[Tensor, " M"]) -> LabelledVideos:
        """Some of the videos."""
        return LabelledVideos(
            self.random.of(videos),
            self.regular.of(videos),
            self.classes[videos],
            tuple(self.groups[int(video)] for video in videos),
            None if self.targets is None else self.targets[videos],
        )

    def with_all_clips(self) -> LabelledVideos:
        """The same videos with the regular clips behind the random ones, to learn from both."""
        return replace(self, random=self.random.followed_by(self.regular))

    def judged_by_all(self) -> LabelledVideos:
        """The same videos with the random clips before the regular ones, to be judged by both."""
        return replace(self, regular=self.random.followed_by(self.regular))


class HeldOut:
    """The test videos: their clips for everyone, what they show only for the final score.

    `clips` are the regular ones; the random ones are read when they are asked for.
    """

    def __init__(
        self,
        ids: tuple[str, ...],
        clips: ClipBatch,
        classes: Int[Tensor, " M"],
        targets: Float[Tensor, " M"] | None = None,
        random: Callable[[], ClipBatch] | None = None,
    ) -> None:
        self.ids, self.clips, self._random = ids, clips, random
        self._classes, self._targets = classes, targets

    def __len__(self) -> int:
        return len(self.ids)

    def judged_by_all(self) -> HeldOut:
        """The same videos with the random clips before the regular ones."""
        if self._random is None:
            raise ProbeError("the test videos have no random clips to be judged by")
        clips = self._random().followed_by(self.clips)
        return HeldOut(self.ids, clips, self._classes, self._targets)

    def evaluate(
        self, outputs: Float[Tensor, "M C"]
    ) -> Int[np.ndarray, "M 2"] | Float[np.ndarray, "M 2"]:
        """True and predicted class (or target) of each video. Called once for each final probe."""
        if self._targets is None:
            return torch.stack([self._classes, outputs.argmax(dim=1)], dim=1).numpy()
        return torch.stack([self._targets, outputs[:, 0]], dim=1).double().numpy()


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """What is to be told from a store: the names of the classes, the train and test videos.

    Without classes, numbers are predicted. `validation` is there if the catalog names a split for
    choices, and `pretraining` if it is known what models learned from before.
    """

    classes: tuple[str, ...]
    train: LabelledVideos
    test: HeldOut
    split: str = "test"  # what the test videos' split is called
    validation: LabelledVideos | None = None
    pretraining: PretrainingSetup | None = None

    @property
    def outputs(self) -> int:
        """Numbers that a probe gives for each clip."""
        return len(self.classes) or 1

    def judged_by_all(self) -> EvaluationTask:
        """The same task; videos are judged by all clips of theirs, not by regular ones alone."""
        validation = self.validation and self.validation.judged_by_all()
        train, test = self.train.judged_by_all(), self.test.judged_by_all()
        return replace(self, train=train, test=test, validation=validation)


def make_task(
    store: FeatureStore,
    catalog: Catalog | None = None,
    model: ModelConfig | None = None,
    training: PretrainConfig | None = None,
) -> EvaluationTask:
    """The task that a catalog's labels (or targets) and splits pose.

    Judged on `test`, else on `val`; where there are both, choices are made on `val`. Clips
    are read as the model wants to see them; `training` is how it was pre-trained, if known.
    """
    if not len(store):
        why = store.failed[0].reason if store.failed else "it is empty"
        raise ProbeError(f"no video of the store could be read; the first: {why}")
    known = {video.id: video for video in catalog or store.catalog}
    videos = {place: known[id] for place, id in enumerate(store.ids) if id in known}
    numbers = all(video.label is None for video in videos.values())
    useful = {
        place: video
        for place, video in videos.items()
        if (video.target if numbers else video.label) is not None
    }
    judged = "test" if any(video.split == "test" for video in useful.values()) else "val"
    parts = {name: _in_split(useful, name) for name in ("train", judged, "val")}
    _refuse_hopeless(useful, parts["train"], parts[judged], numbers)
    if len(useful) < len(videos):
        what = "target" if numbers else "label"
        say(f"{len(videos) - len(useful)} of {len(videos)} videos have no {what}: passed over")
    classes = () if numbers else tuple(sorted({v.label or "" for v in parts["train"].values()}))
    _refuse_strangers(parts[judged], classes, judged)
    places = {name: number for number, name in enumerate(classes)}
    read = partial(read_clips, store, model=training.model if training else model)
    held = np.array(list(parts[judged]))
    return EvaluationTask(
        classes=classes,
        train=_labelled(read, parts["train"], places),
        test=HeldOut(
            ids=tuple(video.id for video in parts[judged].values()),
            clips=read("regular", held),
            classes=_classes(parts[judged], places),
            targets=_targets(parts[judged], places),
            random=lambda: read("random", held),
        ),
        split=judged,
        validation=_validation(read, parts["val"], places) if judged == "test" else None,
        pretraining=pretraining_on(store, catalog, training) if training else None,
    )


def pretraining_on(
    store: FeatureStore, catalog: Catalog | None, training: PretrainConfig
) -> PretrainingSetup:
    """What may be gone on with: by the splits that are judged by, whatever the store's own say."""
    seen = store if catalog is None else FeatureStore(store.folder, catalog)
    return PretrainingSetup(seen, training)


def keep_few(task: EvaluationTask, fraction: float, seed: int) -> EvaluationTask:
    """The same task with a random fraction of the training labels of each class."""
    labels = task.train.classes.tolist()
    kept = subset_indices(labels, fraction=fraction, generator=np.random.default_rng(seed))
    return replace(task, train=task.train.only(torch.tensor(kept)))


def _in_split(videos: dict[int, Video], name: str) -> dict[int, Video]:
    return {place: video for place, video in videos.items() if video.split == name}


def _labelled(read: ReadClips, videos: dict[int, Video], places: dict[str, int]) -> LabelledVideos:
    rows = np.array(list(videos))
    return LabelledVideos(
        random=read("random", rows),
        regular=read("regular", rows),
        classes=_classes(videos, places),
        groups=tuple(video.group for video in videos.values()),
        targets=_targets(videos, places),
    )


def _validation(
    read: ReadClips, videos: dict[int, Video], places: dict[str, int]
) -> LabelledVideos | None:
    """The videos of the split for choices, without classes that nobody can have learned."""
    if places:
        videos = {place: video for place, video in videos.items() if video.label in places}
    return _labelled(read, videos, places) if videos else None


def _classes(videos: dict[int, Video], places: dict[str, int]) -> Int[Tensor, " N"]:
    return torch.tensor([places.get(video.label or "", 0) for video in videos.values()])


def _targets(videos: dict[int, Video], places: dict[str, int]) -> Float[Tensor, " N"] | None:
    if places:
        return None
    return torch.tensor([video.target or 0.0 for video in videos.values()])


def _refuse_hopeless(
    useful: dict[int, Video], train: dict[int, Video], test: dict[int, Video], numbers: bool
) -> None:
    if not useful:
        raise ProbeError("no video that could be read has a label; probes need labels")
    for split, videos in (("train", train), ("test", test)):
        if not videos:
            raise ProbeError(
                f"no labelled video that could be read is in the split {split!r}; "
                f"give the catalog's column split both train and test"
            )
    if not numbers and len({video.label for video in useful.values()}) < 2:
        raise ProbeError("all videos have the same label; there is nothing to tell apart")
    if numbers and len({video.target for video in train.values()}) < 2:
        raise ProbeError("all training videos have the same target; there is nothing to predict")


def _refuse_strangers(judged: dict[int, Video], classes: tuple[str, ...], split: str) -> None:
    strangers = sorted({video.label or "" for video in judged.values()} - set(classes))
    if classes and strangers:
        more = f" (and {len(strangers) - 1} more)" if len(strangers) > 1 else ""
        raise ProbeError(
            f"no training video shows {strangers[0]!r}{more}, which the {split} split has; "
            f"give it one or take it out of the catalog"
        )
