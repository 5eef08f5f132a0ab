"""A refused or mistyped command leaves a finished run as it is, to the byte."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from safetensors.torch import save
from tests.attacks.conftest import TINY, tree_digest
from tests.miniatures import run
from torch import zeros

from clipset.checksums import seal
from clipset.config import to_mapping
from clipset.training.checkpoint import RunState, read_card, training_settings
from clipset.training.config import weight_settings

REFUSED = {
    "another seed of the clips": ("--set=extract.seed=5",),
    "other clips": ("--set=extract.sampling.num_clips=5",),
    "another size": ("--set=extract.size=48",),
    "an unknown backbone": ("--set=extract.backbone=efficientnet_lite9",),
    "an unknown setting": ("--set=pretrain.epoch=3",),
    "sets larger than a video has clips": ("--set=pretrain.clips_per_set=4",),
    "batches of groups without groups": ("--set=pretrain.batch_from=group",),
    "a bad fraction": ("--set=data.test_fraction=7",),
    "a test split without labels": ("--set=data.test_split=val",),
    "an unknown device": ("--device=tpu",),
    "a missing recipe": ("--recipe=nothing.toml",),
}


@pytest.mark.parametrize("words", REFUSED.values(), ids=list(REFUSED))
def test_a_refused_command_leaves_a_finished_run_untouched(
    words: tuple[str, ...],
    finished_run: Path,
    videos: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    before = tree_digest(finished_run)
    assert run("run", videos, "--out", finished_run, *TINY, *words) == 2
    errors = capfd.readouterr().err
    assert errors.startswith("clipset: ")
    assert errors.count("\n") == 1
    assert tree_digest(finished_run) == before


def test_a_mistyped_folder_of_videos_leaves_a_finished_run_untouched(
    finished_run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = tree_digest(finished_run)
    (tmp_path / "empty").mkdir()
    for videos in (tmp_path / "video", tmp_path / "empty", finished_run / "run.json"):
        assert run("run", videos, "--out", finished_run, *TINY) == 2
    assert capfd.readouterr().err.count("clipset: ") == 3
    assert tree_digest(finished_run) == before


@pytest.mark.parametrize("words", [("--set=pretrain.epochs=9",), ("--set=pretrain.preset=paper",)])
@pytest.mark.parametrize("checkpoint", ["of this clipset", "of another clipset"])
def test_a_stopped_training_of_other_settings_is_left_alone(
    checkpoint: str,
    words: tuple[str, ...],
    finished_run: Path,
    videos: Path,
    capfd: pytest.CaptureFixture[str],
) -> None:
    """What a killed training left cannot be continued with other settings: nothing is touched."""
    card = read_card(finished_run / "model")
    settings = weight_settings(training_settings(card))
    state = RunState(
        fingerprint=card.fingerprint, epoch=7, settings=settings, dim=card.dim, seed=card.seed
    )
    if checkpoint == "of another clipset":
        state = replace(state, fingerprint="other", settings={})
    (finished_run / "model" / "checkpoints").mkdir()
    header = {"state": msgspec.json.encode(to_mapping(state)).decode()}
    path = finished_run / "model" / "checkpoints" / "epoch-000007.safetensors"
    path.write_bytes(seal(save({"model.x": zeros(1)}, metadata=header)))
    before = tree_digest(finished_run)
    assert run("run", videos, "--out", finished_run, *TINY, *words) == 2
    assert "another run that was stopped at epoch 7" in capfd.readouterr().err
    assert tree_digest(finished_run) == before


@pytest.mark.parametrize("seed", [-1, 2**32, 10**30])
def test_a_seed_that_no_generator_takes_is_one_line(
    seed: int, videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert run("run", videos, "--out", tmp_path / "run", *TINY, f"--seed={seed}") == 2
    [line] = capfd.readouterr().err.splitlines()
    assert "seed must be a whole number" in line
    assert not (tmp_path / "run").exists()
