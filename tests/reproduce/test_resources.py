"""Table 1: costs of training steps, measured in processes of their own, predicted where needed."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tests.miniatures import run
from torch import nn

from clipset.errors import ConfigError
from clipset.networks.video_transformers import VideoMAEConfig
from clipset.reproduce import resources
from clipset.reproduce.paper import TABLES
from clipset.reproduce.render import render_latex, render_markdown, render_text
from clipset.reproduce.resources import (
    GB,
    MethodCosts,
    ResourceSettings,
    estimate_bytes,
    fill_table,
    measure_method,
    run_step,
)
from clipset.reproduce.step_worker import SavedTensors, StepCost, StepRequest, measure_step
from clipset.reproduce.table import empty_table

NETWORK = VideoMAEConfig(
    embed_dim=32, depth=2, num_heads=2, mlp_dim=128, patch_size=8, frames=4, size=32
)
BATCHES = (8, 19, 57, 2048)


def cost(batch: int, *, per_video: float = 0.5 * GB, seconds: float = 1.0) -> StepCost:
    """A step that keeps half a GB for each video beside 1 GB of state."""
    return StepCost(
        peak_bytes=int(1.02 * (GB + batch * per_video)), state_bytes=GB,
        moments=((int(batch * per_video), 0), (0, GB // 4)), seconds=seconds,
    )  # fmt: skip


def test_what_a_forward_pass_keeps_is_counted_once_and_freed_in_the_reverse_order() -> None:
    layers = nn.Sequential(nn.Linear(10, 20, bias=False), nn.ReLU(), nn.Linear(20, 5, bias=False))
    inputs = torch.randn(7, 10, requires_grad=True)
    saved = SavedTensors(layers)
    saved.add(inputs)
    with saved.counting():
        layers(inputs).sum().backward()
    first, hidden = 4 * 7 * 10, 4 * 7 * 20  # the input, and the output of the ReLU
    at_last_layer = (first + hidden + 2 * hidden, 4 * 5 * 20)
    at_first_layer = (first + 2 * first, 4 * (5 * 20 + 20 * 10))
    assert saved.moments() == (at_last_layer, at_first_layer)


def test_a_gradient_is_there_twice_while_it_is_summed_over_two_uses() -> None:
    layer = nn.Linear(30, 30, bias=False)
    saved = SavedTensors(layer)
    with saved.counting():
        layer(layer(torch.randn(1, 30, requires_grad=True)))
    assert max(gradients for _, gradients in saved.moments()) == 2 * 4 * 30 * 30


@pytest.mark.parametrize("method", ["moco", "videomae", "sparse-moco", "scale"])
def test_a_step_of_each_method_is_run_and_its_bytes_are_counted(method: str) -> None:
    request = StepRequest(method=method, batch=4, network=NETWORK)
    small, large = (measure_step(replace(request, batch=batch)) for batch in (4, 8))
    assert small.seconds > 0
    assert small.state_bytes == large.state_bytes > 2 * small.moments[-1][1] > 0
    assert large.moments[0][0] == pytest.approx(2 * small.moments[0][0], rel=0.1)


def test_a_step_keeps_as_much_as_was_estimated_before_it_ran() -> None:
    request = StepRequest(method="moco", batch=4, network=NETWORK)
    step = measure_step(request)
    views = 4 * 2 * 4 * 4 * 3 * 32 * 32
    activations = estimate_bytes(request) - estimate_bytes(replace(request, batch=0))
    heads = 4 * 2 * 4 * (2 * 4 * 4096 + 6 * 256)  # of the projection and the prediction
    assert step.moments[0][0] - views - heads == pytest.approx(activations, rel=0.25)


def test_predictions_are_linear_in_the_batch_above_the_gradients() -> None:
    costs = MethodCosts({2: cost(2)})
    assert costs.predict_bytes(8) == 5 * GB
    assert costs.largest_batch(24.0 * GB) == 46
    assert costs.largest_batch(GB / 2) == 0
    assert costs.errors[2] == pytest.approx(1 / 1.02 - 1, abs=1e-6)
    assert MethodCosts({2: cost(2, per_video=GB / 100)}).predict_bytes(2) == GB + GB // 4


@pytest.mark.slow
@pytest.mark.parametrize(("method", "batches"), [("moco", (4, 8)), ("scale", (19, 256))])
def test_a_prediction_is_within_a_tenth_of_the_resident_memory(
    method: str, batches: tuple[int, int]
) -> None:
    network = ResourceSettings(vit="small", frames=8, size=112).network
    request = StepRequest(method=method, batch=2, network=network)
    measured = {batch: run_step(replace(request, batch=batch)) for batch in batches}
    costs = MethodCosts({batch: step for batch, step in measured.items() if step is not None})
    assert tuple(costs.costs) == batches
    assert all(abs(error) < 0.1 for error in costs.errors.values())
    smaller, larger = batches
    from_smaller = MethodCosts({smaller: costs.costs[smaller]}).predict_bytes(larger)
    assert from_smaller == pytest.approx(costs.costs[larger].peak_bytes, rel=0.1)


def test_a_batch_that_does_not_fit_or_takes_too_long_is_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[int] = []

    def measure(request: StepRequest) -> StepCost:
        asked.append(request.batch)
        return cost(request.batch, seconds=float(request.batch))

    monkeypatch.setattr(resources, "available_memory", lambda: 1000 * GB)
    request = StepRequest(method="moco", batch=2, network=NETWORK)
    measure_method(request, BATCHES, ResourceSettings(seconds=1000.0), measure)
    assert asked == [2, 8, 19]  # 57 needs more than 24 GB
    asked.clear()
    measure_method(request, BATCHES, ResourceSettings(seconds=10.0), measure)
    assert asked == [2, 8]
    asked.clear()
    monkeypatch.setattr(resources, "available_memory", lambda: 4 * GB)
    measure_method(request, BATCHES, ResourceSettings(seconds=1000.0), measure)
    assert asked == [2]
    monkeypatch.setattr(resources, "available_memory", lambda: 1 << 16)
    with pytest.raises(ConfigError, match=r"with 2 videos needs about .* GB, which is not free"):
        measure_method(request, BATCHES, ResourceSettings(), measure)
    monkeypatch.setattr(resources, "available_memory", lambda: 1000 * GB)
    asked.clear()
    measure_method(request, BATCHES, ResourceSettings(smallest=16, seconds=20.0), measure)
    assert asked == [16, 19]


def test_the_table_has_measured_predicted_and_impossible_batches_beside_the_paper_s() -> None:
    table = empty_table(TABLES["resources"])
    slow = MethodCosts({2: cost(2, seconds=2.0), 8: cost(8, seconds=8.0)})
    fast = MethodCosts({b: cost(b, per_video=GB / 1000, seconds=0.01 * b) for b in (2, *BATCHES)})
    rows = dict.fromkeys(TABLES["resources"].rows, slow) | {"SCALE": fast}
    fill_table(table, rows, BATCHES, ResourceSettings(), device="cpu")
    text = render_text(table)
    ours = next(line for line in text.splitlines() if line.startswith("MoCo v3"))
    assert " ".join(ours.split()) == "MoCo v3 ours 5.10 ≈ 10.50 OOM OOM 1 100 ≈ 46"
    paper = text.splitlines()[text.splitlines().index(ours) + 1]
    assert " ".join(paper.split()) == "paper 23.47 OOM OOM OOM 8.66 1,065 –"
    assert "MoCo v3: -2.0% at 2, -2.0% at 8" in text
    assert "1 / 8.66" in render_markdown(table)
    assert r"$\approx$ 10.50 / OOM" in render_latex(table)


def test_the_verb_writes_the_table_in_all_formats(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(resources, "run_step", lambda request: cost(request.batch))
    monkeypatch.setattr(resources, "available_memory", lambda: 1000 * GB)
    assert run("reproduce", "resources", "--out", tmp_path / "t", "--device", "cpu") == 0
    monkeypatch.setattr(resources, "run_step", None)  # what was measured is not measured again
    assert run("reproduce", "resources", "--out", tmp_path / "t", "--device", "cpu") == 0
    assert "Computational resources (table 1 of the paper)" in capfd.readouterr().out
    names = {"table.json", "table.txt", "table.md", "table.tex", "table.html"}
    assert names <= {path.name for path in (tmp_path / "t").iterdir()}
    cells = json.loads((tmp_path / "t" / "table.json").read_text())["cells"]
    assert {cell["measurement"]["kind"] for cell in cells} == {"measured", "predicted"}
    assert run("reproduce", "resources", "--out", tmp_path / "t", "--render") == 0
    assert run("reproduce", "resources", "--out", tmp_path / "u", "--set", "vit=huge") == 2
    assert "vit must be one of mini, tiny, small, base, got 'huge'" in capfd.readouterr().err
    assert run("reproduce", "--list") == 0
    assert "resources              table  1: Computational resources" in capfd.readouterr().out
