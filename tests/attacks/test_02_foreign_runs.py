"""A run or a store of somebody else names code; only what the user names is run."""

from __future__ import annotations

import json
import shutil
import socket
from pathlib import Path

import pytest
from tests.attacks.conftest import Clipset, one_line
from tests.miniatures import TINY, run, write_backbone

WEIGHED = """
from pathlib import Path
from clipset.backbones.registry import BackboneSpec, Weights
from torch import nn

class Mean(nn.Module):
    def forward(self, clips):
        return clips.mean((1, 3, 4)) + len(Path(__file__).with_name("weights.txt").read_text())

def make():
    weights = Weights(file="weights.txt", licence="none", source="none")
    shape = dict(dim=3, frames=2, stride=4, size=16, mean=(0.0,) * 3, std=(1.0,) * 3)
    return BackboneSpec(name="weighed", pooling="", paper="", weights=weights, **shape), Mean()
"""


@pytest.fixture(scope="module")
def backbone(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A backbone of the user's own, by its name."""
    return write_backbone(tmp_path_factory.mktemp("own"))


@pytest.fixture(scope="module")
def own_run(backbone: str, videos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run with that backbone; not to be changed."""
    out = tmp_path_factory.mktemp("own_run") / "run"
    rows = ["--set=evaluate.probes=['knn', 'linear']", f"--set=extract.backbone={backbone}"]
    assert run("run", videos, "--out", out, *TINY, *rows, "--quiet") == 0
    return out


@pytest.fixture
def foreign(own_run: Path, tmp_path: Path) -> Path:
    """A copy of it, to be edited."""
    return Path(shutil.copytree(own_run, tmp_path / "run"))


def write_evil(path: Path, marker: Path) -> Path:
    """A Python file that leaves a mark when it is run."""
    path.write_text(f"open({str(marker)!r}, 'w').close()\ndef make(): ...\n")
    return path


def edit_manifest(store: Path, *, made_by: str | None = None, name: str | None = None) -> None:
    path = store / "manifest.json"
    manifest = json.loads(path.read_text())
    if made_by is not None:
        manifest["made_by"]["backbone"] = made_by
    if name is not None:
        manifest["backbone"]["name"] = name
    path.write_text(json.dumps(manifest))


def damage(store: Path) -> None:
    """Flip a byte in the rows, so that there is something to repair."""
    path = store / "random" / "features.npy"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def said(capfd: pytest.CaptureFixture[str]) -> str:
    """The one line on standard error."""
    lines = [line for line in capfd.readouterr().err.splitlines() if line.startswith("clipset: ")]
    assert len(lines) == 1, lines
    return lines[0]


def users_of_backbones(folder: Path, video: Path, out: Path) -> list[list[object]]:
    """The verbs that need the backbone of a run or store."""
    return [
        ["predict", video, "--run", folder, "--workers", "0", "--quiet"],
        ["embed", video, "--run", folder, "--out", out, "--workers", "0", "--quiet"],
        ["repair", folder / "store", "--workers", "0", "--quiet"],
    ]


@pytest.mark.parametrize("file", ["evil.py:make", "evil.pt", "evil.onnx", "evil.xml"])
def test_code_that_a_manifest_names_is_not_run(
    file: str, foreign: Path, videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    marker = tmp_path / "run by clipset"
    write_evil(tmp_path / file.partition(":")[0], marker)
    monkeypatch.chdir(tmp_path)  # a relative name would be found, too
    damage(foreign / "store")
    for edit in ({"made_by": str(tmp_path / file)}, {"made_by": file, "name": file}):
        edit_manifest(foreign / "store", **edit)
        for words in users_of_backbones(foreign, videos / "red" / "0.mp4", tmp_path / "out"):
            assert run(*words) == 2
            line = said(capfd)
            assert f"{edit['made_by']!r} (sha256 " in line
            assert "name it yourself with --backbone FILE.py:make" in line
    assert not marker.exists()
    assert not (foreign / "head").exists()


def test_verbs_that_need_no_backbone_load_none(
    foreign: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "run by clipset"
    file = write_evil(tmp_path / "evil.py", marker)
    edit_manifest(foreign / "store", made_by=f"{file}:make")
    store = foreign / "store"
    for words in (
        ["verify", store],
        ["merge", store, "--out", tmp_path / "merged", "--quiet"],
        ["embed", store, "--model", foreign / "model", "--out", tmp_path / "vectors"],
        ["evaluate", store, "--probes", "knn", "--quiet"],
        ["report", foreign],
    ):
        assert run(*words) == 0, (words, capfd.readouterr())
    assert not marker.exists()


def test_the_backbone_that_the_user_names_is_used(
    backbone: str, foreign: Path, own_run: Path, videos: Path, tmp_path: Path
) -> None:
    edit_manifest(foreign / "store", made_by=str(tmp_path / "gone.py:make"))
    for words in users_of_backbones(foreign, videos / "red" / "0.mp4", tmp_path / "out"):
        if "repair" in words:
            damage(foreign / "store")  # before, nothing would be fitted to its rows
        assert run(*words, "--backbone", backbone) == 0
    rows = "store/random/features.npy"
    assert (foreign / rows).read_bytes() == (own_run / rows).read_bytes()


def test_a_named_file_with_another_hash_is_refused_before_it_runs(
    backbone: str, foreign: Path, videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    marker = tmp_path / "run by clipset"
    changed = write_evil(tmp_path / "tints.py", marker)
    changed.write_text(Path(backbone.removesuffix(":make")).read_text() + changed.read_text())
    for words in users_of_backbones(foreign, videos / "red" / "0.mp4", tmp_path / "out"):
        if "repair" in words:
            damage(foreign / "store")  # before, nothing would be fitted to its rows
        assert run(*words, "--backbone", f"{changed}:make") == 2
        assert "is not the backbone tints.py:make that made the features" in said(capfd)
    assert not marker.exists()


def test_a_named_file_with_other_weights_beside_it_is_refused_before_it_runs(
    videos: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "weights.txt").write_text("the weights")
    (tmp_path / "weighed.py").write_text(WEIGHED)
    name = f"{tmp_path / 'weighed.py'}:make"
    words = [
        "--set=extract.sampling.num_clips=2",
        "--workers",
        "0",
        "--set=extract.engine=torch",
        "--quiet",
    ]
    few = videos / "red"
    assert run("extract", few, "--out", tmp_path / "store", "--backbone", name, *words) == 0
    damage(tmp_path / "store")
    (tmp_path / "weights.txt").write_text("other weights")
    repair = ["repair", tmp_path / "store", "--workers", "0", "--quiet", "--backbone", name]
    capfd.readouterr()
    assert run(*repair) == 2
    assert "is not the backbone weighed that made the features" in said(capfd)
    (tmp_path / "weights.txt").write_text("the weights")
    assert run(*repair) == 0


@pytest.mark.slow
def test_a_hub_name_of_a_manifest_does_not_reach_the_network(
    foreign: Path, videos: Path, tmp_path: Path, clipset: Clipset
) -> None:
    edit_manifest(foreign / "store", made_by="hf:someone/some-model", name="hf:someone/some-model")
    with socket.create_server(("127.0.0.1", 0)) as hub:
        env = {
            "HF_ENDPOINT": f"http://127.0.0.1:{hub.getsockname()[1]}",
            "HF_HOME": str(tmp_path / "cache"),
        }
        done = clipset("embed", videos / "red" / "0.mp4", "--run", foreign, env=env)
        hub.setblocking(False)
        with pytest.raises(BlockingIOError):  # nobody knocked
            hub.accept()
    assert "name it yourself with --backbone hf:FOLDER" in one_line(done)
