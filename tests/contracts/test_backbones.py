"""Laws that every backbone keeps: those whose weights are here, and each family in small."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from clipset.backbones.checkpoints import load_checkpoint
from clipset.backbones.registry import (
    FAMILIES,
    BackboneSpec,
    find_backbone,
    list_backbones,
    load_backbone,
)
from clipset.backbones.released import (
    SLOW_R50_LAYOUT,
    SVT_LAYOUT,
    VJEPA2_LAYOUT,
    load_videomae,
)
from clipset.backbones.runtime import Engine, open_engine
from clipset.config import build, to_mapping
from clipset.networks.convolutional import SlowR50
from clipset.networks.video_transformers import SVT, VJEPA2, VideoMAEConfig, ViTConfig

GOLDEN = Path(__file__).parents[1] / "golden"
SHAPE: dict[str, Any] = {"embed_dim": 48, "depth": 2, "num_heads": 3, "mlp_dim": 192}
TINY_MAE = VideoMAEConfig(**SHAPE, size=64)

Loaded = tuple[BackboneSpec, nn.Module]
Make = Callable[[Path], Loaded]  # given a folder to work in


def tiny(name: str, network: Callable[[], nn.Module], *, dim: int, frames: int, size: int) -> Make:
    """A small checkpoint of a family, under the spec that the family registers."""

    def make(_: Path) -> Loaded:
        spec = replace(find_backbone(name).spec, dim=dim, frames=frames, size=size)
        return spec, network().eval().requires_grad_(False)

    return make


def registered(name: str) -> Make:
    return lambda _: load_backbone(name, frames=8, size=64)


def hugging_face(folder: Path) -> Loaded:
    copy = shutil.copytree(GOLDEN / "videomae_pretrain" / "hf", folder / "model")
    means = {"image_mean": [0.485, 0.456, 0.406], "image_std": [0.229, 0.224, 0.225]}
    (copy / "preprocessor_config.json").write_text(json.dumps(means | {"size": 64}))
    return load_backbone(f"hf:{copy}")


TINY: dict[str, Make] = {
    "svt": tiny(
        "svt_vitb16",
        lambda: load_checkpoint(
            lambda: SVT(ViTConfig(**SHAPE, frames=8, size=64)),
            SVT_LAYOUT,
            GOLDEN / "svt" / "checkpoint.pth",
        ),
        dim=48, frames=8, size=64,
    ),
    "slow_r50": tiny(
        "rbyol_slow_r50",
        lambda: load_checkpoint(
            lambda: SlowR50(4),
            SLOW_R50_LAYOUT,
            GOLDEN / "rbyol_slow_r50" / "checkpoint.pyth",
        ),
        dim=128, frames=8, size=64,
    ),
    "videomae": tiny(
        "videomae_b",
        lambda: load_videomae(GOLDEN / "videomae_pretrain" / "checkpoint.pth", TINY_MAE),
        dim=48, frames=16, size=64,
    ),
    "videomae fine-tuned": tiny(
        "videomae_b_k400",
        lambda: load_videomae(
            GOLDEN / "videomae_finetuned" / "checkpoint.pth",
            replace(TINY_MAE, norm="mean"),
        ),
        dim=48, frames=16, size=64,
    ),
    "vjepa2": tiny(
        "vjepa2_vitl",
        lambda: load_checkpoint(
            lambda: VJEPA2(ViTConfig(**SHAPE)),
            VJEPA2_LAYOUT,
            GOLDEN / "vjepa2" / "checkpoint.pth",
        ),
        dim=48, frames=8, size=64,
    ),
}  # fmt: skip
if find_spec("transformers") is not None:
    TINY["hugging face"] = hugging_face
HERE = {
    entry.spec.name: registered(entry.spec.name)
    for entry in list_backbones()
    if entry.find_weights() is not None
}
CASES = HERE | TINY


@pytest.fixture(scope="module", params=CASES)
def loaded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Loaded:
    return CASES[request.param](tmp_path_factory.mktemp("backbone"))


@pytest.fixture(scope="module")
def engine(loaded: Loaded) -> Engine:
    return open_engine(*loaded, device="cpu", engine="torch")


def noise(spec: BackboneSpec, count: int) -> Tensor:
    shape = (count, spec.frames, 3, spec.size, spec.size)
    generator = torch.Generator().manual_seed(0)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def test_every_family_is_held_to_the_laws() -> None:
    modules = {entry.load.__module__.rpartition(".")[2] for entry in list_backbones()}
    assert modules == set(FAMILIES)
    held = {name.split("_")[0] for name in HERE} | {name.split(" ")[0] for name in TINY}
    networks = {entry.spec.name.removeprefix("rbyol_") for entry in list_backbones()}
    assert {name for name in networks if not name.startswith(tuple(held))} == set()


def test_names_are_unique_and_every_spec_says_whose_weights_it_carries() -> None:
    specs = [entry.spec for entry in list_backbones()]
    assert len({spec.name for spec in specs}) == len(specs)
    for spec in specs:
        assert spec.weights.licence
        assert spec.weights.source
        assert spec.weights.file
        assert spec.pooling
        assert spec.paper
        assert min(spec.std) > 1, f"{spec.name}: std is on the scale 0..255"


def test_a_feature_has_the_shape_that_the_spec_says(engine: Engine) -> None:
    features = engine.features(noise(engine.spec, 2))
    assert features.shape == (2, engine.spec.dim)
    assert features.dtype == torch.float32


def test_the_same_clip_gives_the_same_feature_and_another_clip_another(engine: Engine) -> None:
    clips = noise(engine.spec, 2)
    first = engine.features(clips)
    assert torch.equal(first, engine.features(clips))
    assert not torch.equal(first[0], first[1])


def test_a_feature_does_not_depend_on_the_clips_beside_it(engine: Engine) -> None:
    clips = noise(engine.spec, 3)
    together = engine.features(clips)
    alone = torch.cat([engine.features(clip) for clip in clips.split(1)])
    assert torch.equal(together, alone)


def test_the_network_itself_mixes_no_clips_of_a_batch(loaded: Loaded) -> None:
    spec, network = loaded
    clips = noise(spec, 2).float() / 128 - 1
    with torch.no_grad():
        together = network(clips)
        alone = torch.cat([network(clip) for clip in clips.split(1)])
    scale = float(alone.abs().max())
    torch.testing.assert_close(together, alone, atol=1e-4 * scale, rtol=1e-4)


def test_a_backbone_is_frozen(loaded: Loaded, engine: Engine) -> None:
    spec, network = loaded
    assert not any(parameter.requires_grad for parameter in network.parameters())
    assert not any(module.training for module in network.modules())
    before = {key: value.clone() for key, value in network.state_dict().items()}
    assert not engine.features(noise(spec, 1)).requires_grad
    assert all(torch.equal(before[key], value) for key, value in network.state_dict().items())


def test_a_spec_survives_being_written_and_read(loaded: Loaded) -> None:
    spec = loaded[0]
    assert build(BackboneSpec, to_mapping(spec), "spec") == spec


class FirstConvolution(TorchFunctionMode):
    """Keeps what the first convolution is given."""

    given: Tensor | None = None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if self.given is None and func in (torch.conv2d, torch.conv3d):
            self.given = args[0]
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("deviations", [0, 1])
def test_mean_and_std_are_applied_exactly_once(
    loaded: Loaded, engine: Engine, deviations: int
) -> None:
    spec = loaded[0]
    colour = torch.tensor(spec.mean) + deviations * torch.tensor(spec.std)
    clip = noise(spec, 1) * 0 + colour.round().to(torch.uint8).view(3, 1, 1)
    with FirstConvolution() as first:
        engine.features(clip)
    assert first.given is not None
    values = first.given[first.given != 0]  # padding may have been added
    expected = torch.full_like(values, float(deviations))
    torch.testing.assert_close(values, expected, atol=0.6 / min(spec.std), rtol=0)
