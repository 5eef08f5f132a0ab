"""How a frozen network runs: the same features from every engine, batch and device."""

from __future__ import annotations

import sys
import warnings
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from jaxtyping import Float
from tests.contracts.test_backbones import TINY
from torch import Tensor, nn

from clipset.backbones.registry import BackboneSpec, Weights, load_backbone
from clipset.backbones.runtime import TorchEngine, find_chunk, open_engine
from clipset.devices import find_device
from clipset.errors import BackboneError, ConfigError

WITH_OPENVINO = pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is an extra")
BOTH_ENGINES = pytest.mark.parametrize(
    "engine", ["torch", pytest.param("openvino", marks=WITH_OPENVINO)]
)
SPEC = BackboneSpec(
    name="small", dim=33, frames=4, stride=1, size=32,
    mean=(100.0, 110.0, 120.0), std=(50.0, 60.0, 70.0), pooling="mean", paper="none",
    weights=Weights(file="none", licence="none", source="none"),
)  # fmt: skip


class SmallTransformer(nn.Module):
    """Attention over patches: its matrix products are done in another way for other batch sizes."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv3d(3, 33, (2, 8, 8), (2, 8, 8))
        self.layer = nn.TransformerEncoderLayer(33, 3, 132, dropout=0.0, batch_first=True)
        noise = torch.Generator().manual_seed(0)
        for parameter in self.parameters():
            parameter.data = torch.randn(parameter.shape, generator=noise) * 0.2

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D"]:
        tokens = self.patches(clips.transpose(1, 2)).flatten(2).transpose(1, 2)
        features: Tensor = self.layer(tokens).mean(dim=1)
        return features


class ColourMean(nn.Module):
    """The mean of each colour of the normalised clip."""

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B 3"]:
        return clips.mean(dim=(1, 3, 4))


class Fickle(nn.Module):
    """Does something else for dark clips: tracing one of them loses the other branch."""

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B 3"]:
        means = clips.mean(dim=(1, 3, 4))
        return means if means.mean() < -1 else means * 5 + 1


class Broken(nn.Module):
    """Divides by the brightness of the first frame, which may be nothing."""

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B 3"]:
        return clips[:, 1].mean(dim=(2, 3)) / clips[:, 0].abs().mean(dim=(2, 3))


def spec_of(dim: int, **changes: object) -> BackboneSpec:
    """The small spec for a network of three features or so."""
    fields = {name: getattr(SPEC, name) for name in SPEC.__slots__}
    return BackboneSpec(**(fields | {"dim": dim} | changes))


def noise(count: int, spec: BackboneSpec = SPEC, seed: int = 0) -> Tensor:
    """Clips of random pixels."""
    shape = (count, spec.frames, 3, spec.size, spec.size)
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


@BOTH_ENGINES
def test_features_are_plain_float32_on_the_cpu(engine: str) -> None:
    opened = open_engine(SPEC, SmallTransformer().eval(), device="cpu", engine=engine)
    assert (opened.name, opened.device) == (engine, "cpu")
    features = opened.features(noise(5))
    assert features.shape == (5, SPEC.dim)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    assert opened.features(noise(0)).shape == (0, SPEC.dim)


@BOTH_ENGINES
def test_a_feature_is_the_same_to_the_bit_in_any_batch(engine: str) -> None:
    opened = open_engine(SPEC, SmallTransformer().eval(), device="cpu", engine=engine)
    clips = noise(7)
    at_once = opened.features(clips)
    for size in (1, 2, 3, 5):
        assert torch.equal(torch.cat([opened.features(p) for p in clips.split(size)]), at_once)
    order = torch.tensor([4, 0, 6, 2, 5, 1, 3])
    assert torch.equal(opened.features(clips[order]), at_once[order])


def test_chunks_of_a_card_are_filled_up_so_that_neighbours_do_not_matter() -> None:
    engine = TorchEngine(SPEC, SmallTransformer(), torch.device("cpu"))
    engine.chunk = 4
    clips = noise(7)
    at_once = engine.features(clips)
    assert torch.equal(torch.cat([engine.features(part) for part in clips.split(3)]), at_once)


@BOTH_ENGINES
def test_mean_and_std_are_applied_once(engine: str) -> None:
    opened = open_engine(spec_of(3), ColourMean(), device="cpu", engine=engine)
    clips = noise(2)
    mean, std = torch.tensor(SPEC.mean), torch.tensor(SPEC.std)
    expected = (clips.double().mean(dim=(1, 3, 4)) - mean) / std
    torch.testing.assert_close(opened.features(clips), expected.float(), atol=1e-5, rtol=1e-5)


@WITH_OPENVINO
@pytest.mark.parametrize("name", ["efficientnet_lite0", "i3d_kinetics400"])
def test_openvino_gives_the_features_of_torch(name: str) -> None:
    try:
        spec, network = load_backbone(name, frames=8, size=64)
    except BackboneError as error:
        pytest.skip(str(error))
    clips = noise(3, spec)
    fast = open_engine(spec, network, device="cpu", engine="openvino").features(clips)
    plain = open_engine(spec, network, device="cpu", engine="torch").features(clips)
    assert (fast - plain).norm() < 1e-4 * plain.norm()


@WITH_OPENVINO
@pytest.mark.parametrize(
    ("family", "frames", "size"),
    [("svt", 16, 80), ("slow_r50", 2, 32), ("videomae", 16, 80), ("vjepa2", 4, 32)],
)
def test_openvino_gives_the_features_of_torch_at_sizes_that_are_not_native(
    family: str, frames: int, size: int, tmp_path: Path
) -> None:
    spec, network = TINY[family](tmp_path)
    spec = replace(spec, frames=frames, size=size)
    clips = noise(2, spec)
    openvino = open_engine(spec, network, device="cpu", engine="openvino").features(clips)
    plain = open_engine(spec, network, device="cpu", engine="torch").features(clips)
    torch.testing.assert_close(openvino, plain, atol=2e-5, rtol=1e-5)


@WITH_OPENVINO
def test_openvino_is_taken_on_a_cpu_and_reports_to_nobody() -> None:
    assert open_engine(SPEC, SmallTransformer(), device="cpu").name == "openvino"
    assert open_engine(SPEC, SmallTransformer(), engine="openvino").device == "cpu"
    assert sys.modules.get("openvino_telemetry") is None


def test_without_openvino_torch_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "openvino", None)
    assert open_engine(SPEC, SmallTransformer(), device="cpu").name == "torch"
    with pytest.raises(BackboneError, match=r"pip install 'clipset\[openvino\]'"):
        open_engine(SPEC, SmallTransformer(), device="cpu", engine="openvino")


@WITH_OPENVINO
def test_a_network_that_openvino_gets_wrong_runs_in_torch() -> None:
    spec = spec_of(3)
    with pytest.raises(BackboneError, match="openvino and torch disagree on small"):
        open_engine(spec, Fickle(), device="cpu", engine="openvino")
    with pytest.warns(UserWarning, match="running small in torch"):
        engine = open_engine(spec, Fickle(), device="cpu")
    assert engine.name == "torch"


@BOTH_ENGINES
def test_a_feature_that_is_not_finite_is_an_error_that_names_the_clip(engine: str) -> None:
    spec = spec_of(3, mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    opened = open_engine(spec, Broken(), device="cpu", engine=engine)
    clips = noise(4)
    assert opened.features(clips).isfinite().all()
    clips[2, 0] = 0
    with pytest.raises(BackboneError, match="not finite, for clip 2 of a batch of 4"):
        opened.features(clips)


@BOTH_ENGINES
def test_clips_of_another_shape_are_refused(engine: str) -> None:
    opened = open_engine(SPEC, SmallTransformer(), device="cpu", engine=engine)
    with pytest.raises(BackboneError, match=r"takes clips of \(4, 3, 32, 32\).* got \(5, 3, 32"):
        opened.features(noise(1, spec_of(33, frames=5)))
    with pytest.raises(BackboneError, match=r"got \(4, 3, 40, 40\)"):
        opened.features(noise(1, spec_of(33, size=40)))


@BOTH_ENGINES
def test_a_network_of_another_width_than_its_spec_is_refused(engine: str) -> None:
    opened = open_engine(spec_of(4), ColourMean(), device="cpu", engine=engine)
    with pytest.raises(BackboneError, match=r"must give \(4,\) for a clip, got \(3,\)"):
        opened.features(noise(1))


@pytest.mark.parametrize("device", ["gpu", "cpu:1", "cuda:x", "cuda:", "auto:0", ""])
def test_an_unknown_device_is_refused(device: str) -> None:
    with pytest.raises(ConfigError, match="known: auto, cpu, cuda, mps, cuda:N"):
        open_engine(SPEC, ColourMean(), device=device)


def test_an_unknown_engine_is_refused_with_near_names() -> None:
    with pytest.raises(BackboneError, match="did you mean openvino"):
        open_engine(SPEC, ColourMean(), engine="opnvino")


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a card here")
def test_a_card_that_is_not_here_is_said() -> None:
    with pytest.raises(ConfigError, match=r"CUDA device .* not found"):
        open_engine(SPEC, ColourMean(), device="cuda")


@pytest.mark.skipif(torch.backends.mps.is_available(), reason="there is MPS here")
def test_mps_that_is_not_here_is_said() -> None:
    with pytest.raises(ConfigError, match="MPS is not available"):
        open_engine(SPEC, ColourMean(), device="mps")


def test_the_chunk_is_halved_until_it_fits() -> None:
    sizes = []

    def run(clips: Tensor) -> Tensor:
        sizes.append(len(clips))
        if len(clips) > 8:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 1 GiB")
        return clips

    assert find_chunk(run, SPEC) == 8
    assert sizes == [32, 16, 8]


def test_another_failure_on_a_card_is_not_taken_for_lack_of_memory() -> None:
    def run(_: Tensor) -> Tensor:
        raise RuntimeError("shapes cannot be multiplied")

    with pytest.raises(RuntimeError, match="multiplied"):
        find_chunk(run, SPEC)


@pytest.mark.skipif(find_device("auto").type == "cpu", reason="there is no card here")
def test_a_card_gives_the_features_of_the_cpu() -> None:
    plain = open_engine(SPEC, SmallTransformer(), device="cpu", engine="torch").features(noise(5))
    fast = open_engine(SPEC, SmallTransformer()).features(noise(5))
    assert (fast - plain).norm() < 2e-2 * plain.norm()


@WITH_OPENVINO
def test_opening_openvino_warns_of_nothing() -> None:
    with warnings.catch_warnings(record=True, action="always") as seen:
        open_engine(SPEC, SmallTransformer(), device="cpu", engine="openvino")
    assert not seen
