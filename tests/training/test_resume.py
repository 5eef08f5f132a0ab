"""Runs that are killed, and what they leave behind."""

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
from safetensors.torch import load, save

from clipset.checksums import seal
from clipset.errors import TrainingError
from clipset.features.store import FeatureStore
from clipset.model.config import ModelConfig
from clipset.training import trainer
from clipset.training.config import PretrainConfig
from clipset.training.pretrain import (
    check_pretraining,
    pretrain,
    remove_outdated_checkpoints,
)

SMALL = PretrainConfig(
    model=ModelConfig(width=32, num_layers=1, projection_hidden=(32, 32), projection_dim=16),
    epochs=6,
    batch_size=9,
    clips_per_set=4,
    validate_every=2,
)
MOMENTS = ("step", "write", "rename", "sweep", "metrics", "best", "model", "card")

# One process that forks a child for each moment; the child kills itself there with SIGKILL.
KILLED = """
import os, pathlib, signal, sys
from clipset.features.store import open_store
from clipset.training import trainer, monitor
from clipset.training.pretrain import pretrain
from tests.training.test_resume import MOMENTS, SMALL

trainer.CHECKPOINT_SECONDS = 0.0


def die(*_):
    os.kill(os.getpid(), signal.SIGKILL)


def die_at(owner, name, count, first=False, only=lambda *_: True):
    plain, calls = getattr(owner, name), []

    def counted(*arguments, **options):
        calls.extend([1] if only(*arguments) else [])
        if len(calls) == count and first:
            die()
        result = plain(*arguments, **options)
        if len(calls) == count:
            die()
        return result

    setattr(owner, name, counted)


def is_checkpoint(path):
    return "epoch-" in path.name


def is_final(path, moment):
    return path.parent.name == moment and "metrics" not in path.name


def half_written():
    plain = os.fsync

    def fsync(file):
        name = os.readlink(f"/proc/self/fd/{file}")
        if "epoch-000003" in name:
            os.truncate(name, os.path.getsize(name) // 2)
            die()
        plain(file)

    os.fsync = fsync


def arm(moment):
    if moment == "step":
        die_at(trainer.PretrainingRun, "_step", 7)
    elif moment == "write":
        half_written()
    elif moment == "rename":
        die_at(pathlib.Path, "replace", 3, first=True, only=lambda path, *_: is_checkpoint(path))
    elif moment == "sweep":
        die_at(pathlib.Path, "unlink", 1, first=True, only=lambda path: path.name[0] == "e")
    elif moment == "metrics":
        die_at(monitor.Monitor, "write", 4)
    elif moment == "best":
        die_at(trainer, "save_model", 1)
    elif moment == "model":
        die_at(pathlib.Path, "replace", 1, only=lambda path, *_: is_final(path, moment))
    elif moment == "card":
        die_at(pathlib.Path, "replace", 4, first=True, only=lambda path, *_: is_final(path, moment))


store = open_store(pathlib.Path(sys.argv[1]))
for moment in MOMENTS:
    child = os.fork()
    if child == 0:
        arm(moment)
        pretrain(store, pathlib.Path(sys.argv[2]) / moment, SMALL)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL, moment
"""


def weights(folder: Path) -> bytes:
    return (folder / "model.safetensors").read_bytes()


def metrics(folder: Path) -> list[dict[str, float]]:
    lines = [msgspec.json.decode(x) for x in (folder / "metrics.jsonl").read_bytes().splitlines()]
    return [{k: v for k, v in line.items() if "second" not in k} for line in lines]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="looks at open files through /proc")
def test_a_run_killed_at_any_moment_ends_with_the_same_weights(
    small_store: FeatureStore, tmp_path: Path
) -> None:
    pretrain(small_store, tmp_path / "whole", SMALL)
    root = Path(__file__).parents[2]
    subprocess.run(
        [sys.executable, "-c", KILLED, str(small_store.folder), str(tmp_path)],
        cwd=root,
        env=os.environ | {"PYTHONPATH": f"{root / 'src'}:{root}"},
        check=True,
        timeout=500,
    )
    for moment in MOMENTS:
        folder = tmp_path / moment
        assert not (folder / "model.json").exists(), moment
        assert any((folder / "checkpoints").iterdir()), moment
        pretrain(small_store, folder, SMALL)
        assert weights(folder) == weights(tmp_path / "whole"), moment
        assert weights(folder / "best") == weights(tmp_path / "whole" / "best"), moment
        assert metrics(folder) == metrics(tmp_path / "whole"), moment
        assert not (folder / "checkpoints").exists(), moment


def stop_at(epoch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a run break off before an epoch, with a checkpoint after each one before."""
    plain = trainer.PretrainingRun._epoch

    def breaking(run: trainer.PretrainingRun) -> dict[str, int | float]:
        if run.epoch == epoch:
            raise KeyboardInterrupt
        return plain(run)

    monkeypatch.setattr(trainer, "CHECKPOINT_SECONDS", 0.0)
    monkeypatch.setattr(trainer.PretrainingRun, "_epoch", breaking)


@pytest.fixture
def stopped(small_store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A run with checkpoints after epochs 3 and 4."""
    with monkeypatch.context() as patch:
        stop_at(4, patch)
        with pytest.raises(KeyboardInterrupt):
            pretrain(small_store, tmp_path / "stopped", SMALL)
    return tmp_path / "stopped"


def test_the_last_checkpoints_are_kept_and_a_truncated_one_is_passed_over(
    small_store: FeatureStore, stopped: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    names = ["epoch-000003.safetensors", "epoch-000004.safetensors"]
    assert sorted(path.name for path in (stopped / "checkpoints").iterdir()) == names
    newest = stopped / "checkpoints" / names[1]
    newest.write_bytes(newest.read_bytes()[:-100])
    pretrain(small_store, stopped, SMALL)
    assert "epoch-000004.safetensors is damaged" in capsys.readouterr().err
    pretrain(small_store, tmp_path / "whole", SMALL)
    assert weights(stopped) == weights(tmp_path / "whole")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"standardise": False}, "standardise True, now False"),
        ({"learning_rate": 1e-3}, "learning_rate 0.0003, now 0.001"),
        (
            {
                "model": ModelConfig(
                    width=64, num_layers=1, projection_hidden=(32, 32), projection_dim=16
                )
            },
            "model.width 32",
        ),
    ],
)
def test_a_checkpoint_of_other_settings_is_left_alone(
    small_store: FeatureStore, stopped: Path, change: dict[str, Any], message: str
) -> None:
    before = sorted(path.name for path in (stopped / "checkpoints").iterdir())
    with pytest.raises(TrainingError, match=message):
        pretrain(small_store, stopped, replace(SMALL, **change))
    assert sorted(path.name for path in (stopped / "checkpoints").iterdir()) == before


def test_a_checkpoint_of_another_seed_width_or_version_is_left_alone(
    small_store: FeatureStore, stopped: Path
) -> None:
    with pytest.raises(TrainingError, match="seed 0, now 1"):
        pretrain(small_store, stopped, SMALL, seed=1)
    newest = stopped / "checkpoints" / "epoch-000004.safetensors"
    tensors = load(newest.read_bytes())  # not mapped: the file is written anew below
    state = {"fingerprint": "x", "epoch": 4, "settings": {}, "dim": 99, "seed": 0, "format": 4}
    for change, message in (
        ({}, "width 99, now 1280"),
        ({"format": 7}, "another clipset wrote it"),
    ):
        header = {"state": msgspec.json.encode(state | change).decode()}
        newest.write_bytes(seal(save(tensors, header)))
        with pytest.raises(TrainingError, match=message):
            pretrain(small_store, stopped, SMALL)


def test_checkpoints_on_other_videos_are_outdated_and_those_of_other_settings_are_not(
    small_store: FeatureStore, stopped: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    remove_outdated_checkpoints(small_store, stopped)
    check_pretraining(small_store, stopped, SMALL, seed=0, device="cpu")
    with pytest.raises(TrainingError, match="another run that was stopped at epoch 4"):
        check_pretraining(small_store, stopped, replace(SMALL, epochs=9), seed=0, device="cpu")
    assert (stopped / "checkpoints" / "epoch-000004.safetensors").is_file()
    videos = [
        replace(v, split="test" if v.label == "red" else v.split) for v in small_store.catalog
    ]
    fewer = FeatureStore(small_store.folder, small_store.catalog.only(videos))
    check_pretraining(fewer, stopped, replace(SMALL, epochs=9), seed=0, device="cpu")
    capsys.readouterr()
    remove_outdated_checkpoints(fewer, stopped)
    assert "are removed: other videos or features" in capsys.readouterr().err
    assert not (stopped / "checkpoints").exists()


def test_what_has_no_effect_on_the_weights_may_change_when_a_run_goes_on(
    small_store: FeatureStore, stopped: Path, tmp_path: Path
) -> None:
    changed = replace(SMALL, preset="own", validate_every=0)
    pretrain(small_store, stopped, changed)
    pretrain(small_store, tmp_path / "whole", SMALL)
    assert weights(stopped) == weights(tmp_path / "whole")
