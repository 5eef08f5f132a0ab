"""Recipes are whole experiments: every one in the repository can be run."""

from dataclasses import replace
from pathlib import Path

import pytest

from clipset.clips.config import preset
from clipset.config import build, to_mapping
from clipset.errors import ClipsetError
from clipset.recipe import Recipe, read_recipe

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_is_valid(path: Path) -> None:
    recipe = read_recipe(path)
    assert build(Recipe, to_mapping(recipe), "again") == recipe


def test_a_setting_can_be_changed_by_name() -> None:
    recipe = read_recipe(None, ["pretrain.epochs=7", "extract.backbone=i3d_kinetics400"])
    assert recipe.pretrain.epochs == 7
    assert recipe.extract.backbone == "i3d_kinetics400"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("pretrain.epoch=7", "did you mean epochs"),
        ("pretrain.epochs=seven", "epochs"),
        ("pretrain.model.width=100", "multiple of 32"),
        ("test_fraction=2.0", "between 0 and 1"),
        ("epochs", "looks like"),
    ],
)
def test_a_wrong_setting_is_named(change: str, message: str) -> None:
    with pytest.raises(ClipsetError, match=message):
        read_recipe(None, [change])


def test_a_preset_chooses_the_clips_and_single_settings_win_over_it() -> None:
    recipe = read_recipe(None, ["extract.preset=official", "extract.sampling.flip=false"])
    assert recipe.extract.sampling == replace(preset("official"), flip=False)
    assert build(Recipe, to_mapping(recipe), "again") == recipe
    assert read_recipe(None).extract.sampling == preset("recommended")
