"""RunData: what the page shows of a run, opened once; the map and predictions follow later."""

from __future__ import annotations

import gzip
import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from clipset.clips.box import BOX_COLUMNS
from clipset.data.catalog import Video
from clipset.errors import RunError, StoreError
from clipset.features.store import FeatureStore
from clipset.inference.run import TrainedRun, load_run
from clipset.representation import read_vectors
from clipset.retrieval.filters import column_value
from clipset.runs import read_run
from clipset.text import name_text

GZIP_LEVEL = 5


@dataclass(frozen=True, slots=True)
class EncodedJson:
    """A value as JSON, plain and compressed, with the tag of its content."""

    plain: bytes
    compressed: bytes
    tag: str


def encode_large(value: Any) -> EncodedJson:
    """Encode a large value once for all clients."""
    plain = msgspec.json.encode(value)
    tag = hashlib.blake2b(plain, digest_size=12).hexdigest()
    return EncodedJson(plain, gzip.compress(plain, GZIP_LEVEL, mtime=0), tag)


class RunData:
    """A finished run: video i is row i of its vectors and of its store.

    `trained` classifies and encodes new videos. `encoded` has all videos in columns.
    """

    def __init__(self, folder: Path, *, device: str = "auto", backbone: str | None = None) -> None:
        self.folder = folder
        self.content = read_run(folder)
        if not (folder / "vectors").is_dir():
            tasks = sorted(path.parent.name for path in folder.glob("*/vectors"))
            if tasks:
                raise RunError(
                    f"{folder} has {len(tasks)} tasks; serve one of them: "
                    f"clipset serve {folder / tasks[0]}"
                )
        self.trained: TrainedRun = load_run(folder, device=device, backbone=backbone)
        self.store: FeatureStore = self.trained.store
        by_id = {video.id: video for video in self.store.catalog}
        self.videos: Sequence[Video] = [by_id[video_id] for video_id in self.store.ids]
        self.vectors = read_vectors(folder / "vectors")
        if self.vectors.video_ids != self.store.ids:
            raise StoreError(
                f"the vectors in {folder / 'vectors'} are not those of the run's videos; "
                f"run `clipset run` again"
            )
        self.encoded: EncodedJson
        self.set_predictions([None] * len(self), [None] * len(self))

    def __len__(self) -> int:
        return len(self.videos)

    @property
    def name(self) -> str:
        """The name of the data."""
        return str(self.content.get("name") or name_text(self.folder.resolve().name))

    @cached_property
    def labels(self) -> Sequence[str | None]:
        """The label of each video in the catalog."""
        return [video.label for video in self.videos]

    @cached_property
    def splits(self) -> Sequence[str | None]:
        """The split of each video."""
        return [video.split for video in self.videos]

    @cached_property
    def columns(self) -> Mapping[str, Sequence[str | None]]:
        """The columns of the catalog beside label and split, one value for each video."""
        names = ("group", "target", *self.store.catalog.columns)
        columns = {name: [column_value(video, name) for video in self.videos] for name in names}
        return {name: values for name, values in columns.items() if any(values)}

    def set_predictions(
        self, labels: Sequence[str | None], confidences: Sequence[float | None]
    ) -> None:
        """The labels that the run's classifier predicts, from now on part of `encoded`."""
        self.encoded = encode_large(
            {
                "ids": self.store.ids,
                "names": [name_text(video.path.name) for video in self.videos],
                "labels": self.labels,
                "splits": self.splits,
                "durations": self.store.durations.round(3).tolist(),
                "predictions": labels,
                "confidences": confidences,
                "columns": self.columns,
            }
        )

    def boxes(self, video_index: int) -> list[dict[str, float]]:
        """The regular clips of a video: seconds, and fractions of the frame."""
        table = self.store.regular
        first, count = int(table.first[video_index]), int(table.count[video_index])
        rows = np.asarray(table.boxes[first : first + count], dtype=np.float64).round(4)
        names = BOX_COLUMNS[:6]
        return [dict(zip(names, row[:6], strict=True)) for row in rows.tolist()]

    @property
    def report(self) -> Path | None:
        """The run's report, if it is written."""
        path = self.folder / "report.html"
        with suppress(OSError):
            return path if path.is_file() and not path.is_symlink() else None
        return None
