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
