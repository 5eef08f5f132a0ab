"""The front door, `import clipset`: its names are true, and the examples use nothing deeper."""

import ast
import inspect
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import clipset
from clipset.errors import ClipsetError

EXAMPLES = sorted((Path(__file__).parents[1] / "examples").glob("*.py"))
TINY_EXTRACT = {
    "frames": 2,
    "stride": 4,
    "size": 32,
    "sampling": {"num_clips": 4, "num_times": 2, "num_crops": 1},
    "engine": "torch",
    "workers": 0,
}
TINY_MODEL = {"width": 32, "num_layers": 1, "projection_hidden": [32, 32], "projection_dim": 16}
TINY_PRETRAIN = {"clips_per_set": 2, "model": TINY_MODEL}
TINY_EVALUATE = {
    "num_seeds": 1,
    "training": {"epochs": 2, "num_clips": 4, "head_learning_rates": [0.03]},
}


def test_every_name_of_the_front_door_exists() -> None:
    assert sorted(clipset.__all__) == clipset.__all__
    for name in clipset.__all__:
        assert inspect.getdoc(getattr(clipset, name)), name
    assert set(clipset.__all__) <= set(dir(clipset))
    with pytest.raises(AttributeError, match="no attribute 'walk'"):
        _ = clipset.walk


def test_the_names_stay_whatever_is_imported() -> None:
    code = "import clipset.pipeline, clipset.demo_videos.dataset, clipset.cli, clipset.settings\n"
    code += "assert all(callable(getattr(clipset, name)) for name in clipset.__all__)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


def test_import_clipset_imports_nothing_heavy() -> None:
    code = "import sys, clipset; sys.exit('numpy' in sys.modules or 'torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_imports_nothing_deeper_than_clipset(
    path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        modules = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        modules += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        assert not [name for name in modules if name.startswith("clipset.")]
    monkeypatch.setattr("sys.argv", [str(path)])
    with pytest.raises(SystemExit, match="usage: python"):
        runpy.run_path(str(path), run_name="__main__")


def test_what_a_step_returns_is_what_the_next_one_takes(small_videos: Path, tmp_path: Path) -> None:
    store = clipset.extract(str(small_videos), out=str(tmp_path / "store"), **TINY_EXTRACT)
    assert isinstance(store, clipset.FeatureStore)
    model = clipset.pretrain(store, out=str(tmp_path / "model"), epochs=2, **TINY_PRETRAIN)
    assert isinstance(model, clipset.ScaleModel)
    scores = clipset.evaluate(store, model, probes=["knn", "scale_linear"], **TINY_EVALUATE)
    assert [(score.features, score.probe) for score in scores] == [
        ("backbone", "knn"), ("scale", "linear"),
    ]  # fmt: skip
    again = clipset.evaluate(
        str(tmp_path / "store"), str(tmp_path / "model"), probes=["knn"], **TINY_EVALUATE
    )
    assert again[0].value == scores[0].value
    vectors = clipset.embed(store, model=model)
    assert vectors.video_ids == store.ids
    model.save_pretrained(tmp_path / "shared")
    loaded = clipset.ScaleModel.from_pretrained(str(tmp_path / "shared"))
    assert (clipset.embed(store, model=loaded).vectors == vectors.vectors).all()
    with pytest.raises(ClipsetError, match="did you mean epochs"):
        clipset.pretrain(store, out=tmp_path / "other", epoch=2)
    with pytest.raises(ClipsetError, match="embed needs"):
        clipset.embed(["a.mp4"])


def test_a_run_predicts_and_embeds_new_videos(small_videos: Path, tmp_path: Path) -> None:
    recipe = tmp_path / "recipe.toml"
    recipe.write_text(
        """
        [extract]
        frames = 2
        size = 32
        engine = "torch"
        workers = 0
        sampling = {num_clips = 4, num_times = 2, num_crops = 1}
        [pretrain]
        epochs = 2
        clips_per_set = 2
        model = {width = 32, num_layers = 1, projection_hidden = [32, 32], projection_dim = 16}
        [evaluate]
        probes = ["knn", "linear"]
        num_seeds = 1
        training = {epochs = 2, num_clips = 2, head_learning_rates = [0.03]}
        """
    )
    out = tmp_path / "run"
    result = clipset.run(str(small_videos), out=str(out), recipe=str(recipe))
    assert (result.report, result.vectors) == (out / "report.html", out / "vectors")
    assert [score.probe for score in result.scores] == ["knn", "linear"]
    assert set(result.steps.values()) == {"done"}
    assert set(clipset.run(small_videos, out, recipe).steps.values()) == {"skipped"}
    video = next(iter(clipset.read_catalog(small_videos))).path
    [prediction] = clipset.predict([str(video)], run=str(out), workers=0)
    assert prediction.label in ("red", "green", "blue")
    vectors = clipset.embed([str(video)], run=str(out), workers=0)
    assert vectors.vectors.shape[0] == 1
    assert clipset.load_run(out).folder == out


def test_an_argument_that_would_have_no_effect_is_refused(
    small_store: clipset.FeatureStore,
) -> None:
    video = [str(small_store.catalog.videos[0].path)]
    for call, said in (
        (lambda: clipset.embed(small_store, parts="clip,token"), "parts clip,token need a model"),
        (lambda: clipset.embed(small_store, run="run"), "run and backbone need new videos"),
        (lambda: clipset.embed(video, run="run", window=2.0), "need a feature store"),
        (lambda: clipset.search("a.mp4", run="run", unit="film"), "unit must be video or moment"),
        (lambda: clipset.search("a.mp4", run="run", top=2.5), "must be 1 to 100,000, got 2.5"),
    ):
        with pytest.raises(ClipsetError, match=said):
            call()
    assert clipset.embed(small_store, parts="clip").parts == ("clip",)


def test_backbones_are_listed_and_loaded_by_name() -> None:
    names = [entry.spec.name for entry in clipset.list_backbones()]
    assert "efficientnet_lite0" in names
    spec, network = clipset.load_backbone("efficientnet_lite0")
    assert spec.dim == 1280
    assert not network.training
