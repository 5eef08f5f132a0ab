"""EvaluationTask: train, validation and test videos of a store; test labels are held out."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from clipset.data.catalog import Catalog, Video
from clipset.data.splits import explain_no_test, scored_split, subset_indices
from clipset.errors import ProbeError
from clipset.features.ledger import LedgerEntry
from clipset.features.store import FeatureStore
from clipset.features.verify import check_rows
from clipset.model.config import ModelConfig
from clipset.progress import log
from clipset.sets.stored_clips import Clips, StoredClips, concat_clips, fits_memory, open_clips
from clipset.text import counted
from clipset.training.config import PretrainConfig
from clipset.training.joint import PretrainingSetup

VideosByIndex = dict[int, Video]  # by their index in the store
Labels = Int[Tensor, " N"] | Float[Tensor, " N"]  # class indices, or targets


@dataclass(frozen=True, slots=True)
class LabelledVideos:
    """Videos with class indices or targets: random clips for training, regular ones to predict."""

    random: Clips
    regular: Clips
    classes: Int[Tensor, " N"]
    groups: tuple[str | None, ...]
    targets: Float[Tensor, " N"] | None = None
    files: tuple[str, ...] = ()
    """keys of the videos' files, equal for copies of one file; empty if all are different"""

    def __len__(self) -> int:
        return len(self.classes)

    @property
    def labels(self) -> Labels:
        """What is predicted: class indices, or (floating point) targets."""
        return self.classes if self.targets is None else self.targets

    def select(self, video_index: Int[Tensor, " M"]) -> LabelledVideos:
        """Some of the videos, by index."""
        if torch.equal(video_index, torch.arange(len(self))):
            return self
        return LabelledVideos(
            self.random.select(video_index),
            self.regular.select(video_index),
            self.classes[video_index],
            tuple(self.groups[int(video)] for video in video_index),
            None if self.targets is None else self.targets[video_index],
            tuple(self.files[int(video)] for video in video_index) if self.files else (),
        )

    def train_on_all_clips(self) -> LabelledVideos:
        """The same videos; training also sees the regular clips."""
        return replace(self, random=concat_clips(self.random, self.regular))

    def predict_from_all_clips(self) -> LabelledVideos:
        """The same videos; predictions also average over the random clips."""
        return replace(self, regular=concat_clips(self.random, self.regular))

    def standardise_targets(self, mean: float, std: float) -> LabelledVideos:
        """The same videos with targets of mean 0 and deviation 1; classes stay."""
        if self.targets is None:
            return self
        return replace(self, targets=(self.targets - mean) / std)


class HeldOut:
    """The test videos: clips to predict from, and labels that `evaluate` and `match` alone read.

    `clips` are the regular ones. `groups` is empty if no video has a group.
    """

    def __init__(
        self,
        ids: tuple[str, ...],
        clips: Clips,
        classes: Int[Tensor, " M"],
        targets: Float[Tensor, " M"] | None = None,
        random: Clips | None = None,
        groups: tuple[str | None, ...] = (),
    ) -> None:
        self.ids, self.clips, self._random = ids, clips, random
        self.groups = groups if any(group is not None for group in groups) else ()
        self._classes, self._targets = classes, targets

    def __len__(self) -> int:
        return len(self.ids)

    def predict_from_all_clips(self) -> HeldOut:
        """The same videos; predictions also average over the random clips."""
        if self._random is None:
            raise ProbeError("the test videos have no random clips; set test_clips to 'regular'")
        clips = concat_clips(self._random, self.clips)
        return HeldOut(self.ids, clips, self._classes, self._targets, groups=self.groups)

    def match(self, videos: Int[Tensor, " B"], classes: Int[Tensor, "B N"]) -> Bool[Tensor, "B N"]:
        """Whether classes are those of some of the videos. Called once for each final ranking."""
        return classes == self._classes[videos, None]

    def evaluate(
        self, outputs: Float[Tensor, "M C"]
    ) -> Int[np.ndarray, "M 2"] | Float[np.ndarray, "M 2"]:
        """True and predicted class (or target) of each video. Called once for each final probe."""
        if self._targets is None:
            return torch.stack([self._classes, outputs.argmax(dim=1)], dim=1).numpy()
        return torch.stack([self._targets, outputs[:, 0]], dim=1).double().numpy()


@dataclass(frozen=True, slots=True)
class EvaluationTask:
    """Classes to predict (none: targets), train and test videos, optionally validation videos.

    `pretraining` is the setup of the model's pre-training, if known. `not_scored` is a line about
    test videos that are left out, if there are any.
    """

    classes: tuple[str, ...]
    train: LabelledVideos
    test: HeldOut
    split: str = "test"  # name of the split of the test videos
    validation: LabelledVideos | None = None
    pretraining: PretrainingSetup | None = None
    not_scored: str = ""

    @property
    def is_regression(self) -> bool:
        """Whether targets are predicted, not classes."""
        return not self.classes

    @property
    def num_outputs(self) -> int:
        """Outputs of a probe for each clip."""
        return len(self.classes) or 1

    def predict_from_all_clips(self) -> EvaluationTask:
        """The same task; predictions also average over the random clips."""
        return replace(
            self,
            train=self.train.predict_from_all_clips(),
            test=self.test.predict_from_all_clips(),
            validation=self.validation and self.validation.predict_from_all_clips(),
        )

    def subsample_labels(self, fraction: float, seed: int | None) -> EvaluationTask:
        """The same task with a fraction of the training videos of each class.

        They are drawn at random; without a seed they are the first of the catalog, as published.
        """
        labels = self.train.classes.tolist()
        generator = None if seed is None else np.random.default_rng(seed)
        video_index = subset_indices(labels, fraction=fraction, generator=generator)
        return replace(self, train=self.train.select(torch.tensor(video_index)))


def make_task(
    store: FeatureStore,
    catalog: Catalog | None = None,
    model: ModelConfig | None = None,
    training: PretrainConfig | None = None,
) -> EvaluationTask:
    """The task of a catalog's labels (or targets) and splits.

    Tested on `test`, else on `val`; with both, `val` is the validation split. Boxes are those of
    the model; `training` holds the settings of its pre-training, if known. Where the splits were
    drawn at random, test videos of classes without a readable training video are left out.
    """
    if not len(store):
        first_reason = store.failed[0].reason if store.failed else "it is empty"
        raise ProbeError(f"no video of the store could be read; the first: {first_reason}")
    check_rows(store)
    listed = catalog or store.catalog
    by_id = {video.id: video for video in listed}
    videos = {index: by_id[id] for index, id in enumerate(store.ids) if id in by_id}
    is_regression = all(video.label is None for video in videos.values())
    labelled_videos = {
        index: video
        for index, video in videos.items()
        if (video.target if is_regression else video.label) is not None
    }
    split = scored_split(labelled_videos.values())
    train_videos, test_videos, val = (
        {index: video for index, video in labelled_videos.items() if video.split == name}
        for name in ("train", split, "val")
    )
    not_scored = ""
    if listed.has_drawn_splits and train_videos and not is_regression:
        test_videos, not_scored = _leave_out_unlearned(test_videos, train_videos)
    _check_splits(listed, labelled_videos, train_videos, test_videos)
    _check_labels(labelled_videos, train_videos, is_regression)
    if len(labelled_videos) < len(videos):
        kind = "target" if is_regression else "label"
        log(f"{len(videos) - len(labelled_videos)} of {len(videos)} videos have no {kind}: skipped")
    classes = () if is_regression else tuple(sorted({v.label or "" for v in train_videos.values()}))
    _check_test_classes(store, listed, test_videos, classes, split)
    class_index = {name: index for index, name in enumerate(classes)}
    if split == "val":
        val = {}
    elif classes:  # without classes that have no training video
        val = {index: video for index, video in val.items() if video.label in class_index}
    box_model = training.model if training else model
    in_memory = fits_memory(store, np.array([*train_videos, *val, *test_videos]))
    open_videos = partial(
        open_labelled, store, class_index=class_index, model=box_model, in_memory=in_memory
    )
    test_index = np.array(list(test_videos))
    return EvaluationTask(
        classes=classes,
        train=open_videos(train_videos),
        test=HeldOut(
            ids=tuple(video.id for video in test_videos.values()),
            clips=open_clips(store, "regular", test_index, box_model, in_memory=in_memory),
            classes=_class_tensor(test_videos, class_index),
            targets=_target_tensor(test_videos, class_index),
            random=StoredClips(store, ("random",), test_index, box_model),
            groups=tuple(video.group for video in test_videos.values()),
        ),
        split=split,
        validation=open_videos(val) if val else None,
        pretraining=pretraining_setup(store, catalog, training) if training else None,
        not_scored=not_scored,
    )


def pretraining_setup(
    store: FeatureStore, catalog: Catalog | None, training: PretrainConfig
) -> PretrainingSetup:
    """The setup of joint pre-training, with the splits of the task, not those of the store."""
    return PretrainingSetup(
        store if catalog is None else FeatureStore(store.folder, catalog), training
    )


def open_labelled(
    store: FeatureStore,
    videos: VideosByIndex,
    *,
    class_index: dict[str, int],
    model: ModelConfig | None,
    in_memory: bool | None = None,
) -> LabelledVideos:
    """The clips and labels of some videos; clips are in memory, by default if they are few."""
    video_index = np.array(list(videos))
    in_memory = fits_memory(store, video_index) if in_memory is None else in_memory
    return LabelledVideos(
        random=open_clips(store, "random", video_index, model, in_memory=in_memory),
        regular=open_clips(store, "regular", video_index, model, in_memory=in_memory),
        classes=_class_tensor(videos, class_index),
        groups=tuple(video.group for video in videos.values()),
        targets=_target_tensor(videos, class_index),
        files=tuple(_file_key(store.entries[index]) for index in videos),
    )


def _file_key(entry: LedgerEntry) -> str:
    """A key of the file that was read, by its content; the id, if this is not known."""
    return entry.id if entry.file is None else f"{entry.file.size} {entry.file.digest}"


def _class_tensor(videos: VideosByIndex, class_index: dict[str, int]) -> Int[Tensor, " N"]:
    return torch.tensor([class_index.get(video.label or "", 0) for video in videos.values()])


def _target_tensor(
    videos: VideosByIndex, class_index: dict[str, int]
) -> Float[Tensor, " N"] | None:
    if class_index:
        return None
    return torch.tensor([video.target or 0.0 for video in videos.values()])


def _leave_out_unlearned(test: VideosByIndex, train: VideosByIndex) -> tuple[VideosByIndex, str]:
    """The test videos of classes that have a training video, and a line that names the others.

    Splits are drawn before the files are read: one that is unreadable costs its class alone.
    """
    learned = {video.label for video in train.values()}
    line, kept = "", {index: video for index, video in test.items() if video.label in learned}
    if not kept:
        return test, ""  # refused below, with the reason
    if left_out := Counter(v.label or "" for v in test.values() if v.label not in learned):
        counts = ", ".join(f"{counted(n, 'video')} of {label!r}" for label, n in left_out.items())
        line = f"{counts}: no training video of the same label could be read"
        log(f"not scored: {line}")
    return kept, line


def _check_splits(
    catalog: Catalog, labelled: VideosByIndex, train: VideosByIndex, test: VideosByIndex
) -> None:
    """Refuse labels without training videos, or without test videos."""
    if not labelled:
        raise ProbeError("no readable video has a label; probes need labels")
    for split, videos in (("train", train), ("test", test)):
        if videos:
            continue
        if any(video.split == split and video.is_labelled for video in catalog):
            raise ProbeError(f"no labelled video of the split {split!r} could be read")
        if catalog.has_drawn_splits:
            raise ProbeError(f"there are no test videos: {explain_no_test(catalog)}")
        raise ProbeError(
            f"no labelled video is in the split {split!r}; "
            f"the catalog's column split needs both train and test"
        )


def _check_labels(labelled: VideosByIndex, train: VideosByIndex, is_regression: bool) -> None:
    """Refuse labels among which there is nothing to tell apart."""
    if not is_regression and len({video.label for video in labelled.values()}) < 2:
        raise ProbeError("all videos have the same label; probes need at least two classes")
    train_labels = sorted({video.label or "" for video in train.values()})
    if not is_regression and len(train_labels) < 2:
        raise ProbeError(
            f"all {len(train)} training videos have the label {train_labels[0]!r}; probes need at "
            f"least two classes to learn: add videos of another label to the split 'train'"
        )
    if is_regression and len({video.target for video in train.values()}) < 2:
        raise ProbeError("all training videos have the same target; probes need at least two")


def _check_test_classes(
    store: FeatureStore,
    catalog: Catalog,
    test: VideosByIndex,
    classes: tuple[str, ...],
    split: str,
) -> None:
    """Refuse test classes without training videos."""
    unknown_classes = sorted({video.label or "" for video in test.values()} - set(classes))
    if classes and unknown_classes:
        more = f" (and {len(unknown_classes) - 1} more)" if len(unknown_classes) > 1 else ""
        label, failed = unknown_classes[0], {entry.id: entry.reason for entry in store.failed}
        unreadable = [v.id for v in catalog if (v.split, v.label) == ("train", label)]
        reasons = [f"{id} could not be read: {failed[id]}" for id in unreadable if id in failed]
        raise ProbeError(
            f"no training video has the label {label!r}{more} of the {split} split"
            f"{f' ({reasons[0]})' if reasons else ''}; add one or remove it from the catalog"
        )
