"""A finished run, run again, does nothing."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from tests.attacks.conftest import TINY
from tests.miniatures import run, write_backbone

HEAVY = ("torch", "av", "sklearn", "openvino", "PIL", "jinja2")
AGAIN = f"""
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {HEAVY}:
            raise AssertionError(f"a finished run imports {{name}}")

sys.meta_path.insert(0, Refuse())
from clipset.cli import main
main(sys.argv[1:])
"""


@pytest.fixture
def finished(small_videos: Path, tmp_path: Path) -> tuple[str, ...]:
    """The command of a finished run."""
    backbone = f"--set=extract.backbone={write_backbone(tmp_path)}"
    command = ("run", str(small_videos), "--out", str(tmp_path / "run"), *TINY, backbone)
    assert run(*command, "--quiet") == 0
    return command


def again(*command: str) -> dict[str, str]:
    """Run a finished run in a process that refuses heavy imports; its steps."""
    done = subprocess.run(
        [sys.executable, "-c", AGAIN, *command, "--json", "--quiet"], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    steps: dict[str, str] = json.loads(done.stdout)["steps"]
    return steps


def test_a_finished_run_imports_no_network_and_no_decoder(
    finished: tuple[str, ...], tmp_path: Path
) -> None:
    names = ("report.html", "results.json", "vectors/vectors.safetensors", "catalog.csv")
    before = {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in names}
    steps = again(*finished)
    assert list(steps) == ["catalog", "extract", "pretrain", "embed", "evaluate", "report"]
    assert set(steps.values()) == {"skipped"}
    assert {name: (tmp_path / "run" / name).stat().st_mtime_ns for name in names} == before


def test_only_what_changed_is_done_again(
    finished: tuple[str, ...], tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def steps(*words: str) -> set[str]:
        capfd.readouterr()
        assert run(*finished, *words, "--json", "--quiet") == 0
        answer = json.loads(capfd.readouterr().out)
        return {name for name, status in answer["steps"].items() if status == "done"}

    assert steps() == set()
    assert steps("--set=extract.workers=0", "--set=pretrain.validate_every=2") == {"report"}
    assert steps("--set=evaluate.mlp_hidden=17") == {"evaluate", "report"}
    assert steps("--set=evaluate.mlp_hidden=17", "--seed=1") == {
        "pretrain", "embed", "evaluate", "report",
    }  # fmt: skip
    (tmp_path / "run" / "report.html").unlink()
    assert steps("--set=evaluate.mlp_hidden=17", "--seed=1") == {"report"}
