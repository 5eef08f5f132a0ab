"""Datasets of the paper in miniature, a backbone that costs nothing, and settings to match."""

from pathlib import Path

import pytest
from tests.conftest import write_video

from clipset.cli import main
from clipset.data.datasets import CLASSIFICATION, REGRESSION
from clipset.training import batches, similar

BACKBONE = """
import torch
from torch import nn

class Tints(nn.Module):
    def forward(self, clips):
        return torch.cat([clips.mean(dim=(1, 3, 4)), clips.std(dim=(1, 3, 4))], dim=1)

def make():
    return Tints()
"""
TINY = [
    f"--set={setting}"
    for setting in (
        "extract.frames=2", "extract.size=16", "extract.engine=torch", "extract.workers=0",
        "extract.sampling.num_clips=4", "pretrain.epochs=2", "pretrain.clips_per_set=2",
        "pretrain.model={width = 32, num_layers = 1, projection_dim = 8}",
        "pretrain.model.projection_hidden=[16, 16]",
        "evaluate.num_seeds=1", "evaluate.mlp_hidden=16",
        "evaluate.training={epochs = 2, num_clips = 2, learning_rates = [0.003]}",
        "evaluate.training.head_learning_rates=[0.03]", "evaluate.training.weight_decays=[0.01]",
        "evaluate.training.batch_sizes=[64]", 'evaluate.training.optimizers=["adamw"]',
    )
]  # fmt: skip
LABELS = ("red", "green", "blue")


def write_backbone(folder: Path) -> str:
    """A backbone of one's own, by its name."""
    file = folder / "tints.py"
    file.write_text(BACKBONE)
    return f"{file}:make"


def run(*words: object) -> int:
    """The exit code of a verb."""
    try:
        main([str(word) for word in words])
    except SystemExit as stop:
        return int(stop.code or 0)
    return 0


def make_clusters_small(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few videos form clusters of similar ones, whatever their labels."""
    monkeypatch.setattr(batches, "CLUSTER_SIZE", 8)
    monkeypatch.setattr(similar, "CLUSTER_SIZE", 8)
    monkeypatch.setattr(similar, "MIN_CLUSTER_SIZE", 3)
    monkeypatch.setattr(similar, "MAX_LABEL_EXCESS", 1.0)


def paint(path: Path, colour: int, seed: int) -> None:
    write_video(path, seed=seed, seconds=0.5, colour=colour)


def write_lines(path: Path, lines: list[str]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(lines) + "\n")


def write_ucf101(folder: Path) -> Path:
    """Three classes with six groups; each official split tests another two groups."""
    names = [
        (f"{label}/v_{label}_g{group:02d}_c01", group) for label in LABELS for group in range(6)
    ]
    for number, (name, _) in enumerate(names):
        paint(folder / "UCF-101" / f"{name}.mp4", number // 6, number)
    for fold in (1, 2, 3):
        tested = (2 * fold - 2, 2 * fold - 1)
        lists = folder / "ucfTrainTestlist"
        train = [f"{name}.avi 1" for name, group in names if group not in tested]
        write_lines(lists / f"trainlist{fold:02d}.txt", train)
        test = [f"{name}.avi" for name, group in names if group in tested]
        write_lines(lists / f"testlist{fold:02d}.txt", test)
    return folder


def write_lvu(folder: Path) -> Path:
    """Eight films that all tasks list, each task with other labels or numbers."""
    ids = [f"film{number}" for number in range(16)]
    for number, id in enumerate(ids):
        paint(folder / "videos" / f"{id}.mp4", number % 2, number)
    write_lines(folder / "durations.csv", ["videoid,duration", "film0,0.25"])
    for task in (*CLASSIFICATION, *REGRESSION):
        header = {
            "like_ratio": "like_count dislike_count youtube_id imdb_id",
            "view_count": "view_count youtube_id imdb_id",
        }.get(task, "class_id class_name youtube_id imdb_id")
        facts = {
            "like_ratio": lambda n: f"{n + 1} 3",
            "view_count": lambda n: f"{(n + 1) * 100}",
        }.get(task, lambda n, task=task: f"{n % 2} {task}{n % 2}")
        for split, chosen in (("train", ids[:10]), ("val", ids[10:12]), ("test", ids[12:])):
            lines = [f"{facts(ids.index(id))} {id} tt{id}" for id in chosen]
            write_lines(folder / "lvu_1.0" / task / f"{split}.csv", [header, *lines])
    return folder
