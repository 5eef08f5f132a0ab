"""The optimisation that all trainings share."""

import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from clipset.errors import TrainingError
from clipset.model.config import ModelConfig
from clipset.model.scale import ScaleNetwork
from clipset.training.optim import (
    Optimization,
    choose_precision,
    cosine_schedule,
    decay_groups,
    is_without_decay,
)


def test_the_learning_rate_rises_then_falls_to_zero() -> None:
    rates = [cosine_schedule(step, 100, peak=1.0, warmup_fraction=0.1) for step in range(101)]
    assert rates[0] == 0.0
    assert max(rates) == rates[10] == 1.0
    assert rates[100] == pytest.approx(0.0)
    assert all(a >= b for a, b in pairwise(rates[10:]))


def test_biases_norms_tokens_and_prototypes_are_not_decayed() -> None:
    config = ModelConfig(width=32, num_layers=1, set_loss="clustering", prototypes=12)
    model = ScaleNetwork(10, config)
    names = {
        name
        for name, parameter in model.named_parameters()
        if parameter.requires_grad and is_without_decay(name, parameter)
    }
    assert {"encoder.set_token", "encoder.mask_token", "clusters.prototypes"} <= names
    assert {name.split(".")[-1] for name in names} == {
        "set_token", "mask_token", "prototypes", "bias", "weight",
    }  # fmt: skip
    assert all(".norm" in name for name in names if name.endswith("weight"))
    decayed, others = decay_groups(model, 0.1)
    assert (decayed["weight_decay"], others["weight_decay"]) == (0.1, 0.0)
    assert all(parameter.ndim == 2 for parameter in decayed["params"])
    assert len(others["params"]) == len(names)
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    assert len(decayed["params"]) + len(others["params"]) == len(trained)


def test_steps_are_those_of_adamw_with_schedule_and_clipping() -> None:
    torch.manual_seed(0)
    inputs, module = torch.randn(8, 4), nn.Linear(4, 1)
    expected = nn.Linear(4, 1)
    expected.load_state_dict(module.state_dict())
    adam = torch.optim.AdamW(
        [{"params": [expected.weight], "weight_decay": 0.1},
         {"params": [expected.bias], "weight_decay": 0.0}],
    )  # fmt: skip
    optimization = Optimization(
        module, decay_groups(module, 0.1), learning_rate=0.1, num_steps=5, max_grad_norm=0.5
    )
    for step in range(5):
        for group in adam.param_groups:
            group["lr"] = cosine_schedule(step, 5, peak=0.1, warmup_fraction=0.05)
        adam.zero_grad()
        expected(inputs).square().sum().backward()
        norm = float(nn.utils.clip_grad_norm_(expected.parameters(), 0.5))
        adam.step()
        assert optimization.step(module(inputs).square().sum()) == pytest.approx(norm)
        torch.testing.assert_close(module.weight, expected.weight)
        torch.testing.assert_close(module.bias, expected.bias)


def test_gradients_are_clipped_measured_or_neither() -> None:
    norms = []
    for max_grad_norm in (None, 0.0):
        module = nn.Linear(2, 1, bias=False)
        optimization = Optimization(
            module, decay_groups(module, 0.0), learning_rate=0.1, num_steps=2,
            max_grad_norm=max_grad_norm,
        )  # fmt: skip
        norms.append(optimization.step(module(torch.tensor([[3.0, 4.0]])).sum()))
        assert module.weight.grad is not None
        assert module.weight.grad.tolist() == [[3.0, 4.0]]
    assert norms == [0.0, 5.0]


def test_each_group_has_its_own_scale_of_the_learning_rate() -> None:
    module = nn.Linear(2, 2)
    groups = decay_groups(module, 0.0, lr_scale=0.1)
    optimization = Optimization(
        module, groups, learning_rate=1.0, num_steps=10, warmup_fraction=0.0
    )
    for _ in range(2):
        learning_rate = optimization.learning_rate
        optimization.step(module(torch.ones(1, 2)).sum())
    assert learning_rate == pytest.approx(0.5 * (1 + math.cos(math.pi / 10)))
    assert {group["lr"] for group in optimization.optimizer.param_groups} == {learning_rate * 0.1}


CPU = torch.device("cpu")


def set_capabilities(monkeypatch: pytest.MonkeyPatch, **capabilities: bool) -> None:
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: capabilities, raising=False)


@pytest.mark.parametrize("capability", ["avx512_bf16", "amx_bf16"])
def test_a_processor_with_bfloat16_computes_in_it(
    capability: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_capabilities(monkeypatch, **{capability: True})
    assert choose_precision("auto", CPU) == torch.bfloat16
    assert choose_precision("float32", CPU) == torch.float32
    with pytest.raises(TrainingError, match="float16 is not faster on this device"):
        choose_precision("float16", CPU)


def test_other_processors_compute_in_float32(monkeypatch: pytest.MonkeyPatch) -> None:
    set_capabilities(monkeypatch, avx2=True)
    assert choose_precision("auto", CPU) == torch.float32
    with pytest.raises(TrainingError, match="bfloat16 is not faster on this device"):
        choose_precision("bfloat16", CPU)
