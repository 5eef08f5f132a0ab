"""Flags: what is typed wins, also if it equals the default."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.conftest import write_video
from tests.miniatures import run

from clipset.features.store import open_store


@pytest.mark.parametrize(("typed", "seed"), [((), 5), (("--seed", 0), 0), (("--seed", 7), 7)])
def test_a_seed_that_is_typed_wins_over_the_recipe(
    typed: tuple[object, ...], seed: int, tmp_path: Path
) -> None:
    for index in range(2):
        write_video(tmp_path / "videos" / f"{index}.mp4", seed=index)
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        '[extract]\nseed = 5\nframes = 1\nsize = 32\nengine = "torch"\nworkers = 0\n'
        "sampling = {num_clips = 2, num_times = 1, num_crops = 1}\n"
    )
    store = tmp_path / "store"
    assert run("extract", tmp_path / "videos", "--out", store, "--recipe", recipe, *typed) == 0
    assert open_store(store).manifest.seed == seed


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("settings --set pretrain.epochs=abc", "pretrain.epochs must be a whole number, got 'abc'"),
        ("settings --set extract.sampling.flip=no", "flip must be true or false, got 'no'"),
        ("settings --set evaluate.probes=knn", 'must be a list such as ["a", "b"], got \'knn\''),
        ('settings --set evaluate.probes=["foo"]', "evaluate.probes[0] must be one of knn, scale_"),
        ("settings --set epochs=3", "unknown key 'epochs'; did you mean pretrain.epochs?"),
        ("settings pretrian", "did you mean pretrain, pretrain.model or extract?"),
        ("extract VIDEOS --out new --workers -1", "workers must be at least 0, got -1"),
        ("extract VIDEOS --out FILE", "a file is in its place; use another folder"),
        ("extract VIDEOS more --out new", "unexpected argument 'more'; see `clipset extract --he"),
        ("catalog VIDEOS --out new.txt", "a catalog is written as .csv, got new.txt"),
        ("catalog VIDEOS --fold 2", "--fold and --task are those of a dataset; add --dataset"),
        ("demo --videos 17.5 --out new", "--videos must be a whole number, got 17.5"),
        ("settings --seed 1e3", "--seed must be a whole number, got 1e3"),
        ("extract VIDEOS --out new --workers two", "--workers must be a whole number, got two"),
        ("demo --videos 3 --out new", "the demo needs at least 16 videos, got 3"),
        ("embed a.mp4 --run RUN --out RUN", "cannot write to RUN: it is the folder of a run"),
        ("evaluate RUN", "RUN is not a feature store (no manifest.json); its store is RUN/store"),
        ("evaluate new", "new is not a feature store (no such folder); run `clipset extract`"),
        ("report RUN/store", "RUN/store is not a clipset run (no run.json); the run is RUN"),
        ("reproduce ucf --out new", "no table 'ucf'; did you mean ucf101?"),
        ("reproduce ucf101 --out new --data new", "new not found; --data is the folder"),
        ("predict a.mp4 --run RUN --probe foo", 'Invalid value "foo" for --probe. Choose from'),
    ],
)
def test_a_slip_is_answered_in_one_line_that_says_what_is_allowed(
    words: str,
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    for file in ("VIDEOS/a.mp4", "RUN/run.json", "RUN/store/manifest.json", "FILE"):
        Path(file).parent.mkdir(parents=True, exist_ok=True)
        Path(file).write_text("{}")
    assert run(*words.split()) == 2
    err = capfd.readouterr().err
    assert said in err
    assert len(err.splitlines()) == 1
    assert not Path("new").exists()


def test_an_empty_argument_is_not_taken_for_the_current_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for words in (["catalog", ""], ["extract", "videos", "--out", ""]):
        assert run(*words) == 2
        [line] = capfd.readouterr().err.splitlines()
        assert "an argument is empty; perhaps a variable of the shell is not set" in line
    assert list(tmp_path.iterdir()) == []
