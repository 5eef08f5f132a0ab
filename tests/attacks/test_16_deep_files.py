"""Files that are nested without end, or hold numbers without measure, are one line each."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.miniatures import run

import clipset as package
from clipset.errors import ClipsetError
from clipset.inference.head import load_head
from clipset.inference.run import load_run
from clipset.model.config import ModelConfig
from clipset.probes.config import EvaluateConfig, ProbeTraining
from clipset.recipe import Recipe, read_recipe
from clipset.training.config import PretrainConfig

DEEP = {
    "lists": "[" * 20_000 + "]" * 20_000,
    "lists of a few hundred": "[" * 800 + "]" * 800,  # deep enough to break who walks over them
    "tables": '{"a":' * 20_000 + "1" + "}" * 20_000,
}
HUGE: tuple[Any, ...] = (10**12, 10**30, -1, -(10**30))


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Callable[..., str]:
    """The one line with which a command is refused."""

    def call(*words: object) -> str:
        capsys.readouterr()
        assert run(*words, "--quiet") == 2, words
        lines = [line for line in capsys.readouterr().err.splitlines() if line]
        assert len(lines) == 1, lines
        assert lines[0].startswith("clipset: "), lines[0]
        assert len(lines[0]) < 600
        return lines[0]

    return call


def test_a_recipe_that_is_nested_too_deeply_is_one_line(
    videos: Path, tmp_path: Path, refused: Callable[..., str]
) -> None:
    recipe, out = tmp_path / "deep.toml", tmp_path / "run"
    words = ("run", videos, "--out", out)
    for text in (
        "a = " + "[" * 20_000 + "]" * 20_000,
        "a = " + "[" * 200 + "]" * 200,
        "a." * 20_000 + "b = 1",
        "[" + "a." * 20_000 + "b]",
        "a = " + "{a = " * 20_000 + "1" + "}" * 20_000,
        "data.test_fraction = " + "9" * 5000,
    ):
        recipe.write_text(text)
        assert str(recipe) in refused(*words, "--recipe", recipe)
    for value in ("[" * 20_000 + "]" * 20_000, "[" * 200 + "]" * 200, "9" * 5000):
        assert "pretrain.epochs" in refused(*words, f"--set=pretrain.epochs={value}")
    recipe.write_bytes(b"\xff\xfe")
    refused(*words, "--recipe", recipe)
    refused(*words, "--recipe", tmp_path)
    assert not out.exists()


def test_every_number_of_a_recipe_is_refused_or_can_be_lived_with() -> None:
    """Not finite: nowhere. Without measure: only where it is just more of the same."""
    for path, value in numbers_of(Recipe()):
        if isinstance(value, float):
            for bad in ("nan", "inf", "-inf", "1e400"):
                with pytest.raises(ClipsetError):
                    read_recipe(None, [f"{path}={bad}"])
        with pytest.raises(ClipsetError):
            read_recipe(None, [f"{path}={10**30}"])
    for name in ("width", "num_layers", "projection_hidden", "projection_dim", "prototypes"):
        for value in HUGE:
            number = f"[{value}]" if name.endswith("hidden") else value
            with pytest.raises(ClipsetError):
                read_recipe(None, [f"pretrain.model.{name}={number}"])
    for name in ("frames", "size", "stride"):
        for value in HUGE:
            with pytest.raises(ClipsetError):
                load_spec(**{name: value})


def load_spec(**changes: int) -> None:
    from dataclasses import replace

    from clipset.backbones.registry import DEFAULT, find_backbone

    replace(find_backbone(DEFAULT).spec, **changes)


def numbers_of(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """The settings of a recipe that are single numbers."""
    found: list[tuple[str, Any]] = []
    for name in getattr(value, "__dataclass_fields__", {}):
        inner, where = getattr(value, name), f"{path}.{name}".lstrip(".")
        if isinstance(inner, int | float) and not isinstance(inner, bool):
            found.append((where, inner))
        found += numbers_of(inner, where)
    return found


def test_options_that_are_no_numbers_are_refused() -> None:
    nan, inf = float("nan"), float("inf")
    for bad in (nan, inf, -1.0):
        for make in (
            lambda x: PretrainConfig(learning_rate=x),
            lambda x: PretrainConfig(weight_decay=x),
            lambda x: PretrainConfig(max_grad_norm=x),
            lambda x: ModelConfig(temperature=x),
            lambda x: ModelConfig(dropout=x),
            lambda x: ProbeTraining(learning_rates=(x,)),
            lambda x: ProbeTraining(head_learning_rates=(x,)),
            lambda x: ProbeTraining(joint_weight=x),
            lambda x: ProbeTraining(weight_decays=(x,)),
            lambda x: EvaluateConfig(label_fraction=x),
        ):
            with pytest.raises(ClipsetError):
                make(bad)


@pytest.mark.parametrize("kind", DEEP)
def test_every_file_of_a_run_may_be_nested_too_deeply(
    kind: str, finished_run: Path, videos: Path, tmp_path: Path, refused: Callable[..., str],
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    video, out = videos / "red" / "0.mp4", tmp_path / "out"
    for name, words in {
        "run.json": ("report", finished_run),
        "results.json": ("report", finished_run),
        "store/manifest.json": ("verify", finished_run / "store"),
        "model/model.json": ("embed", finished_run / "store", "--model",
                             finished_run / "model", "--out", out),
    }.items():  # fmt: skip
        path = finished_run / name
        content = path.read_bytes()
        path.write_text(DEEP[kind])
        assert path.name in refused(*words), name
        path.write_bytes(content)
    metrics = finished_run / "model" / "metrics.jsonl"
    metrics.write_text(DEEP[kind])
    assert run("report", finished_run) == 0  # without curves, which is one line
    [line] = [x for x in capsys.readouterr().err.splitlines() if "curves" in x or "clipset:" in x]
    assert "the report has no training curves: line 1 of " in line
    assert len(line) < 600
    assert str(metrics) in line
    config = finished_run / "model" / "config.json"
    (finished_run / "model" / "model.json").rename(tmp_path / "model.json")
    inner = json.loads(config.read_text())
    config.write_text(json.dumps(inner)[:-1] + f', "training": {DEEP[kind]}}}')
    model = ("--model", finished_run / "model", "--out", out)
    assert "config.json" in refused("embed", finished_run / "store", *model)
    table = tmp_path / "table.jsonl"
    table.write_text(f'{{"path": {DEEP[kind]}}}\n')
    assert "table.jsonl" in refused("catalog", table, "--out", out)
    assert video.is_file()
    assert not out.exists()


def test_huge_numbers_in_the_file_of_a_model_take_no_memory(finished_run: Path) -> None:
    folder = finished_run / "model"
    (folder / "model.json").unlink()
    path = folder / "config.json"
    content = json.loads(path.read_text())
    del content["checksum"]
    wide = {"width": 2**20, "head_dim": 32, "num_layers": 1000}
    for change in (
        *({name: value} for name in ("width", "num_layers", "projection_dim", "mlp_ratio",
                                     "prototypes", "head_dim") for value in (*HUGE, 1e40, 2**20)
          if (name, value) not in (("head_dim", 2**20), ("prototypes", 2**20))),
        *({name: [value]} for name in ("projection_hidden", "target_hidden")
          for value in (*HUGE, 1e40, 2**20)),
        {"projection_hidden": [8] * 5000},
        wide,
        {"temperature": -1.0}, {"dropout": 1e300},
    ):  # fmt: skip
        path.write_text(json.dumps(content | {"model": content["model"] | change}))
        with pytest.raises(ClipsetError) as caught:
            package.ScaleModel.from_pretrained(folder)
        assert "\n" not in str(caught.value), change
    for change in ({"dim": 10**12}, {"dim": -1}, {"dim": 10**30}, {"dim": 0}, {"dim": 7}):
        path.write_text(json.dumps(content | change))
        with pytest.raises(ClipsetError):
            package.ScaleModel.from_pretrained(folder)
    for text in ("1e400", "-1e400", "NaN", "1" * 5000):
        path.write_text(json.dumps(content).replace('"dropout": 0.1', f'"dropout": {text}'))
        with pytest.raises(ClipsetError):
            package.ScaleModel.from_pretrained(folder)
    path.write_text(json.dumps(content))
    package.ScaleModel.from_pretrained(folder)


def test_huge_numbers_in_the_files_of_a_run_are_one_line(
    finished_run: Path, videos: Path, refused: Callable[..., str]
) -> None:
    predict = ("predict", videos / "red" / "0.mp4", "--run", finished_run, "--workers", 0)
    path = finished_run / "run.json"
    content = json.loads(path.read_text())
    for change in (
        {"seed": 10**30}, {"seed": -1}, {"seed": "1"}, {"seed": 1.5}, {"recipe": []},
        {"steps": 3}, {"steps": [{"name": "probe", "seconds": "long"}]},
        {"recipe": content["recipe"] | {"evaluate": []}},
        {"recipe": content["recipe"] | {"evaluate": {"num_seeds": 10**30}}},
    ):  # fmt: skip
        path.write_text(json.dumps(content | change))
        refused(*predict)
    path.write_text(json.dumps(content).replace('"seconds": ', '"seconds": 1e400, "x": ', 1))
    assert "run.json" in refused(*predict)
    path.write_text(json.dumps(content))
    path = finished_run / "store" / "manifest.json"
    content = json.loads(path.read_text())
    for name, values in {
        "dim": (10**12, 10**30, -1, 0), "frames": (10**12, -1), "size": (10**12, -1),
        "stride": (10**12, -1),
    }.items():  # fmt: skip
        for value in values:
            path.write_text(json.dumps(content | {"backbone": content["backbone"] | {name: value}}))
            refused(*predict)
    for change in (
        {"seed": 10**30}, {"seed": -1},
        {"sampling": content["sampling"] | {"num_clips": 10**12}},
        {"sampling": content["sampling"] | {"num_times": -1}},
    ):  # fmt: skip
        path.write_text(json.dumps(content | change))
        refused(*predict)


def test_an_odd_file_of_a_head_is_one_line(finished_run: Path) -> None:
    mark = load_run(finished_run).head.card.fingerprint
    path = finished_run / "head" / "head.json"
    content = json.loads(path.read_text())
    texts = [json.dumps(content)[:-1] + f', "x": {deep}}}' for deep in DEEP.values()]
    texts += [json.dumps(content | {"dim": value}) for value in (*HUGE, 1e40)]
    texts += [json.dumps(content).replace('"temperature": ', '"temperature": 1e400, "y": ')]
    for text in texts:
        path.write_text(text)
        with pytest.raises(ClipsetError) as caught:
            load_head(path.parent, mark)
        assert "\n" not in str(caught.value)


def test_a_hub_model_with_a_deep_or_endless_config_is_one_line(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    from clipset.backbones.registry import find_backbone

    folder = tmp_path / "hub"
    folder.mkdir()
    sizes = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "size": 32}
    good = {"model_type": "vit", "hidden_size": 32, "image_size": 32, "num_hidden_layers": 1}
    for config, preprocessor in (
        *((deep, json.dumps(sizes)) for deep in DEEP.values()),
        *((json.dumps(good), deep) for deep in DEEP.values()),
        (json.dumps(good | {"num_hidden_layers": 10**9}), json.dumps(sizes)),
        (json.dumps(good | {"hidden_size": 10**12}), json.dumps(sizes)),
        (json.dumps(good | {"hidden_size": -3}), json.dumps(sizes)),
        (json.dumps(good), json.dumps(sizes | {"rescale_factor": "x"})),
        (json.dumps(good), json.dumps(sizes | {"size": 10**12})),
        (json.dumps(good), json.dumps(sizes | {"size": "large"})),
    ):
        (folder / "config.json").write_text(config)
        (folder / "preprocessor_config.json").write_text(preprocessor)
        with pytest.raises(ClipsetError) as caught:
            find_backbone(f"hf:{folder}")
        assert "\n" not in str(caught.value)
