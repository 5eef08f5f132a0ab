"""The examples run as they stand, on small real videos."""

import runpy
from pathlib import Path

import pytest

from clipset.clips.config import Sampling
from clipset.features.config import ExtractConfig
from clipset.model.config import ModelConfig
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.probes.registry import probe_key
from clipset.training.config import PretrainConfig

EXAMPLE = Path(__file__).parents[2] / "examples" / "walk.py"
EXTRACTION = ExtractConfig(
    frames=2,
    stride=4,
    size=32,
    sampling=Sampling(num_clips=4, num_times=2, num_crops=1),
    engine="torch",
    workers=0,
)
PRETRAINING = PretrainConfig(
    model=ModelConfig(width=32, num_layers=1, projection_hidden=(32, 32), projection_dim=16),
    epochs=2,
    min_steps=2,
    clips_per_set=2,
)
PROBING = EvaluateConfig(
    num_seeds=1,
    mlp_hidden=16,
    training=ProbeTraining(epochs=2, batch_size=16, num_clips=4, learning_rates=(1e-3,)),
)


def test_the_example_walks_from_a_folder_to_scores_and_neighbours(
    small_videos: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    walk = runpy.run_path(str(EXAMPLE))["walk"]
    results = walk(
        small_videos, tmp_path, extraction=EXTRACTION, pretraining=PRETRAINING, probing=PROBING
    )
    said = capsys.readouterr().out.splitlines()
    assert [(result.features, result.probe) for result in results] == [
        probe_key(name) for name in PROBING.probes
    ]
    assert all("% to " in line for line in said[: len(PROBING.probes)])
    assert said[len(PROBING.probes)].startswith("most like ")
    assert len(said) == len(PROBING.probes) + 1 + 3
    assert (tmp_path / "model" / "model.json").is_file()


def test_the_example_says_how_it_is_called(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", [str(EXAMPLE)])
    with pytest.raises(SystemExit, match="usage: python"):
        runpy.run_path(str(EXAMPLE), run_name="__main__")
