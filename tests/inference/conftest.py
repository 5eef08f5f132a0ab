"""A small finished run to use on new videos."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import SMALL

from clipset.inference.run import TrainedRun, load_run
from clipset.model.config import ModelConfig
from clipset.pipeline import run
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.recipe import Recipe
from clipset.training.config import PretrainConfig

RECIPE = Recipe(
    extract=SMALL,
    pretrain=PretrainConfig(
        epochs=4,
        clips_per_set=4,
        model=ModelConfig(width=32, num_layers=1, projection_hidden=(16, 16), projection_dim=8),
    ),
    evaluate=EvaluateConfig(
        num_seeds=1,
        mlp_hidden=16,
        training=ProbeTraining(
            ordered_weights=(0.0,),
            epochs=6,
            num_clips=4,
            learning_rates=(0.003,),
            head_learning_rates=(0.03,),
        ),
    ),
)


@pytest.fixture(scope="session")
def run_folder(small_videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a run over the small videos."""
    out = tmp_path_factory.mktemp("runs") / "first"
    run(small_videos, out, RECIPE)
    return out


@pytest.fixture(scope="session")
def trained(run_folder: Path) -> TrainedRun:
    """The same run, opened."""
    return load_run(run_folder, workers=0)
