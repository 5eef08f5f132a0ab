"""VideoEmbedder: a run as a scikit-learn transformer, for a Pipeline."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from sklearn.base import BaseEstimator, TransformerMixin

from clipset.data.catalog import Catalog, Video
from clipset.errors import VideoError
from clipset.inference.run import TrainedRun, load_run
from clipset.representation import DEFAULT_PARTS, VectorPart


class VideoEmbedder(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Maps paths of videos to vectors, as a run embeds its own videos.

    X is a sequence of paths. There is nothing to fit; an unreadable video is an error. `backbone`
    is that of `load_run`.
    """

    def __init__(
        self,
        run: str | Path,
        *,
        parts: Sequence[VectorPart] = DEFAULT_PARTS,
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
        """Does nothing: the run is trained already."""
        del X, y
        return self

    def transform(self, X: Any) -> Float[np.ndarray, "N R"]:
        """One vector for each path."""
        paths = [Path(path) for path in np.asarray(X, dtype=object).ravel().tolist()]
        unique_paths = dict.fromkeys(map(str, paths))
        videos = tuple(Video(id=path, path=Path(path)) for path in unique_paths)
        table = self._open().embed(Catalog(name="videos", videos=videos), parts=tuple(self.parts))
        for path, reason in table.failed.items():
            raise VideoError(f"{path}: {reason}; remove it from X")
        row_index = {path: row for row, path in enumerate(table.video_ids)}
        vectors: Float[np.ndarray, "N R"] = table.pooled[[row_index[str(path)] for path in paths]]
        return vectors

    def _open(self) -> TrainedRun:
        run_settings = (str(self.run), self.device, self.workers, self.backbone)
        opened_run: tuple[object, TrainedRun] | None = getattr(self, "_opened", None)
        if opened_run is None or opened_run[0] != run_settings:
            trained_run = load_run(
                self.run, device=self.device, workers=self.workers, backbone=self.backbone
            )
            opened_run = self._opened = (run_settings, trained_run)
        return opened_run[1]

    def __getstate__(self) -> dict[str, Any]:
        """Without the open run, so that no loaded backbone is copied."""
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
