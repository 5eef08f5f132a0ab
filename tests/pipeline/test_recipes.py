"""Recipes are whole experiments: every one in the repository can be run."""

from dataclasses import replace
from pathlib import Path

import pytest

from clipset.config import build, flatten, read_toml, to_mapping
from clipset.errors import ClipsetError
from clipset.features.config import ExtractConfig
from clipset.recipe import Recipe, change_recipe, find_recipe, load_settings, read_recipe
from clipset.reproduce.paper import TABLES
from clipset.reproduce.plan import RESOURCES, find_plan, read_table_recipe
from clipset.training.config import PretrainConfig

RECIPES = sorted((Path(__file__).parents[2] / "recipes").glob("*.toml"))


@pytest.mark.parametrize("path", RECIPES, ids=lambda path: path.stem)
def test_every_recipe_of_the_repository_is_valid(path: Path) -> None:
    recipe = read_recipe(path)
    assert build(Recipe, to_mapping(recipe), "again") == recipe


CLIPS = {"extract.frames": 16, "extract.stride": 4, "extract.size": 224}
DIFFERENCES: dict[str, dict[str, object]] = {  # from the preset `paper`, on purpose
    "paper": CLIPS,
    "ucf101": CLIPS,
    "hmdb51": CLIPS,
    "k400": CLIPS,
    "k400_low_shot": CLIPS | {"evaluate.label_fraction": 0.1, "evaluate.label_selection": "first"},
    "lvu": CLIPS,
    "ssv2": CLIPS
    | {"extract.stride": 2, "extract.sampling.num_times": 2, "extract.sampling.flip": False},
}


def differences_from_paper(recipe: Recipe) -> dict[str, object]:
    """The settings of clips, model, training and probes that are not those of the preset."""
    sections = ("extract", "pretrain", "evaluate")
    ours, paper = (
        flatten({name: to_mapping(getattr(each, name)) for name in sections})
        for each in (recipe, read_recipe(None, ["preset=paper"]))
    )
    assert ours.keys() == paper.keys()
    return {name: value for name, value in ours.items() if value != paper[name]}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_recipes_of_the_paper_s_tables_are_the_preset_but_for_listed_differences(name: str) -> None:
    recipe = read_recipe(find_recipe(name))
    assert differences_from_paper(recipe) == DIFFERENCES[name]
    assert {recipe.extract.preset, recipe.pretrain.preset, recipe.evaluate.preset} == {"paper"}


@pytest.mark.parametrize("name", DIFFERENCES)
def test_a_recipe_of_the_paper_sets_nothing_that_the_preset_has(name: str) -> None:
    tables = read_toml(find_recipe(name))
    preset = to_mapping(read_recipe(None, ["preset=paper"]))
    by_hand = flatten({k: v for k, v in tables.items() if k in ("extract", "pretrain", "evaluate")})
    assert not {key for key, value in by_hand.items() if flatten(preset)[key] == value}


@pytest.mark.parametrize("table", sorted(set(TABLES) - {RESOURCES}))
def test_every_table_of_the_paper_runs_the_paper_s_training(table: str) -> None:
    plan = find_plan(table)
    assert plan.recipe in DIFFERENCES
    base = read_table_recipe(plan, None, ())
    ablation = {"pretrain.epochs": 200} if table.startswith("ablation-") else {}
    for row in plan.rows:
        changed = {change.partition("=")[0] for change in row.changes}
        found = differences_from_paper(change_recipe(base, row.changes))
        assert {name: value for name, value in found.items() if name not in changed} == (
            DIFFERENCES[plan.recipe] | ablation
        )


def test_an_ablation_of_another_recipe_has_the_paper_s_training_but_for_what_that_sets(
    tmp_path: Path,
) -> None:
    (tmp_path / "own.toml").write_text("[pretrain]\nclips_per_set = 4\n")
    own = read_table_recipe(find_plan("ablation-masking"), tmp_path / "own.toml", ())
    training = differences_from_paper(own).items()
    assert {name: value for name, value in training if name.startswith("pretrain")} == {
        "pretrain.clips_per_set": 4,
        "pretrain.epochs": 200,
    }


def test_a_setting_can_be_changed_by_name() -> None:
    recipe = read_recipe(None, ["pretrain.epochs=7", "extract.backbone=i3d_kinetics400"])
    assert recipe.pretrain.epochs == 7
    assert recipe.extract.backbone == "i3d_kinetics400"


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("pretrain.epoch=7", "did you mean epochs"),
        ("pretrain.epochs=seven", "epochs"),
        ("pretrain.model.width=100", "multiple of head_dim 32"),
        ("data.test_fraction=2.0", "between 0 and 1"),
        ("epochs", "NAME=VALUE"),
    ],
)
def test_a_wrong_setting_is_named(change: str, message: str) -> None:
    with pytest.raises(ClipsetError, match=message):
        read_recipe(None, [change])


def test_a_preset_chooses_the_clips_and_single_settings_win_over_it() -> None:
    recipe = read_recipe(None, ["extract.preset=official", "extract.sampling.flip=false"])
    official = load_settings(ExtractConfig, "official").sampling
    assert official.crop == "short-side"
    assert recipe.extract.sampling == replace(official, flip=False)
    assert build(Recipe, to_mapping(recipe), "again") == recipe
    assert read_recipe(None).extract.sampling.num_times == 0  # fitted to the videos


def test_a_preset_at_the_top_applies_to_all_sections_but_those_with_their_own(
    tmp_path: Path,
) -> None:
    (tmp_path / "r.toml").write_text('preset = "paper"\n[extract]\npreset = "recommended"\n')
    recipe = read_recipe(tmp_path / "r.toml")
    presets = (recipe.extract.preset, recipe.pretrain.preset, recipe.evaluate.preset)
    assert presets == ("recommended", "paper", "paper")
    assert recipe.extract == load_settings(ExtractConfig, "recommended")
    assert recipe.pretrain == load_settings(PretrainConfig, "paper")
    assert "ordered" not in recipe.evaluate.probes
    assert read_recipe(None, ["preset=paper"]).extract == load_settings(ExtractConfig, "paper")


def test_a_value_set_by_hand_wins_over_a_preset_also_if_it_is_the_default(tmp_path: Path) -> None:
    default = PretrainConfig()
    changes = [
        "pretrain.preset=paper",
        "pretrain.standardise=true",
        "pretrain.model.negatives=masked",
    ]
    config = read_recipe(None, changes).pretrain
    assert (config.standardise, config.model.negatives) == (True, "masked")
    assert config.model.projection_hidden != default.model.projection_hidden
    by_hand = {"epochs": 500, "mask_rule": "count", "standardise": True}
    config = load_settings(PretrainConfig, "official", **by_hand)
    assert {name: getattr(config, name) for name in by_hand} == by_hand
    (tmp_path / "r.toml").write_text(f"[pretrain]\nmax_grad_norm = {default.max_grad_norm}\n")
    recipe = read_recipe(tmp_path / "r.toml", ["pretrain.preset=official"])
    assert recipe.pretrain.max_grad_norm == default.max_grad_norm
    assert recipe.pretrain.mask_rule == "bernoulli"


def test_only_flags_that_were_used_count() -> None:
    flags = {"pretrain.epochs": None, "pretrain.standardise": True}
    config = read_recipe(None, ["pretrain.preset=paper", "pretrain.epochs=9"], flags).pretrain
    assert (config.epochs, config.standardise) == (9, True)


@pytest.mark.parametrize("change", ["preset=papr", "pretrain.preset=papr", "extract.preset=papr"])
def test_an_unknown_preset_is_answered_with_near_names(change: str) -> None:
    with pytest.raises(ClipsetError, match=r"unknown preset 'papr'; did you mean paper\?"):
        read_recipe(None, [change])


def test_a_preset_cannot_be_changed_once_settings_are_resolved() -> None:
    assert change_recipe(Recipe(), ["pretrain.epochs=7"]).pretrain.epochs == 7
    with pytest.raises(ClipsetError, match="cannot be changed once"):
        change_recipe(Recipe(), ["pretrain.preset=paper"])
