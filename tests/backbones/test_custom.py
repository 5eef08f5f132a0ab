"""Backbones of your own: from a Python file, an entry point, TorchScript, ONNX and OpenVINO."""

from __future__ import annotations

import struct
import warnings
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from clipset.backbones.registry import (
    IMAGENET,
    find_backbone,
    load_backbone,
)
from clipset.backbones.runtime import import_openvino, open_engine
from clipset.checksums import sha256_of_files
from clipset.clips.config import Sampling
from clipset.data.catalog import read_catalog
from clipset.errors import BackboneError
from clipset.features.config import ExtractConfig
from clipset.features.extract import extract

WITH_OPENVINO = pytest.mark.skipif(find_spec("openvino") is None, reason="openvino is an extra")
MODULE = """
import torch
from torch import nn

class Colours(nn.Module):
    def __init__(self):
        super().__init__()
        self.mix = nn.Linear(3, 5)
        self.drop = nn.Dropout(0.5)
        with torch.no_grad():
            self.mix.weight.copy_(torch.arange(15.0).view(5, 3) / 10)
            self.mix.bias.zero_()

    def forward(self, clips):
        return self.drop(self.mix(clips.mean(dim=(1, 3, 4))))

def make():
    return Colours()
"""
SPEC = """
from clipset.backbones.registry import BackboneSpec, Weights

def make_with_spec():
    spec = BackboneSpec(
        name="colours", dim=5, frames=4, stride=2, size=32, mean=(0.0, 0.0, 0.0),
        std=(255.0, 255.0, 255.0), pooling="mean", paper="none",
        weights=Weights(file="colours.bin", licence="CC0-1.0", source="made here"),
    )
    return spec, Colours()
"""


class Pooled(nn.Module):
    """The mean of each colour, mixed to four features."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(3, 4)
        self.mix.weight.data = torch.arange(12.0).view(4, 3) / 7
        self.mix.bias.data = torch.tensor([0.0, 1.0, 2.0, 3.0])

    def forward(self, clips: Tensor) -> Tensor:
        features: Tensor = self.mix(clips.mean(dim=(1, 3, 4)))
        return features


class PooledImage(Pooled):
    """The same for single images."""

    def forward(self, clips: Tensor) -> Tensor:
        features: Tensor = self.mix(clips.mean(dim=(2, 3)))
        return features


class PooledChannelsFirst(Pooled):
    """The same for clips (B, 3, T, S, S)."""

    def forward(self, clips: Tensor) -> Tensor:
        features: Tensor = self.mix(clips.mean(dim=(2, 3, 4)))
        return features


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "mine.py"
    path.write_text(MODULE + SPEC)
    return path


def noise(count: int, frames: int, size: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    shape = (count, frames, 3, size, size)
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=generator)


def normalised_colours(clips: Tensor) -> Tensor:
    colours = clips.double().mean(dim=(1, 3, 4))
    return ((colours - torch.tensor(IMAGENET.mean)) / torch.tensor(IMAGENET.std)).float()


def write_script(path: Path, *, frozen: bool = False) -> Path:
    with warnings.catch_warnings(action="ignore"):
        script: Any = torch.jit.trace(Pooled().eval(), torch.zeros(1, 2, 3, 16, 16))
        script = torch.jit.freeze(script) if frozen else script
        script.save(path)
    return path


def write_graph(path: Path, network: nn.Module, shape: tuple[int, ...]) -> Path:
    openvino = import_openvino()
    assert openvino is not None
    with warnings.catch_warnings(action="ignore"), torch.no_grad():
        model = openvino.convert_model(network.eval(), example_input=torch.zeros(shape))
    model.reshape(list(shape))
    openvino.save_model(model, path, compress_to_fp16=False)
    return path


def test_a_module_from_a_file_is_a_backbone_whose_width_is_found(file: Path) -> None:
    spec, network = load_backbone(f"{file}:make", frames=4, size=32)
    assert (spec.name, spec.dim, spec.frames, spec.size) == ("mine.py:make", 5, 4, 32)
    assert spec.weights.sha256 == sha256_of_files([file])
    assert not network.training
    assert not any(parameter.requires_grad for parameter in network.parameters())
    clips = noise(2, 4, 32)
    found = open_engine(spec, network, device="cpu", engine="torch").features(clips)
    mix = torch.arange(15.0).view(5, 3) / 10
    torch.testing.assert_close(found, normalised_colours(clips) @ mix.T, atol=1e-4, rtol=1e-4)


def test_a_file_may_say_itself_what_its_network_is_fed_with(file: Path) -> None:
    spec = find_backbone(f"{file}:make_with_spec").spec
    assert (spec.name, spec.frames, spec.stride, spec.size) == ("colours", 4, 2, 32)
    assert spec.weights.licence == "CC0-1.0"
    assert load_backbone(f"{file}:make_with_spec", size=64)[0].size == 64


def test_the_hash_covers_the_weights_that_the_spec_names(file: Path) -> None:
    before = load_backbone(f"{file}:make_with_spec")[0].weights.sha256
    (file.parent / "colours.bin").write_bytes(b"weights")
    after = load_backbone(f"{file}:make_with_spec")[0].weights.sha256
    assert before == sha256_of_files([file]) != after


def test_a_file_may_import_what_lies_beside_it(tmp_path: Path) -> None:
    (tmp_path / "beside_it.py").write_text(MODULE)
    (tmp_path / "main.py").write_text("from beside_it import make\n")
    assert load_backbone(f"{tmp_path / 'main.py'}:make", frames=1, size=8)[0].dim == 5


def test_extraction_takes_a_backbone_of_your_own(
    file: Path, small_videos: Path, tmp_path: Path
) -> None:
    config = ExtractConfig(
        backbone=f"{file}:make_with_spec", workers=0, engine="torch",
        sampling=Sampling(num_clips=2, num_times=2, num_crops=1),
    )  # fmt: skip
    catalog = read_catalog(small_videos)
    store = extract(catalog.only(list(catalog)[:3]), tmp_path / "store", config)
    assert len(store) == 3
    assert store.manifest.backbone.name == "colours"
    assert store.random.features.shape == (6, 5)
    brightness = store.regular.features.astype(float)
    assert (brightness >= 0).all()


@WITH_OPENVINO
@pytest.mark.parametrize("name", ["net.pt", "net.onnx"])
def test_extraction_takes_a_file_of_another_tool(
    name: str, small_videos: Path, tmp_path: Path
) -> None:
    write_script(tmp_path / "net.pt")
    (tmp_path / "net.onnx").write_bytes(onnx_colour_mean((1, 2, 3, 16, 16)))
    config = ExtractConfig(
        backbone=str(tmp_path / name), frames=2, size=16, workers=0,
        sampling=Sampling(num_clips=2, num_times=2, num_crops=1),
    )  # fmt: skip
    catalog = read_catalog(small_videos)
    store = extract(catalog.only(list(catalog)[:2]), tmp_path / "store", config)
    assert (len(store), store.manifest.backbone.name) == (2, name)
    assert store.manifest.made_by["engine"] == "openvino"


def test_an_installed_package_offers_a_backbone_by_entry_point(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "their_package.py").write_text(
        MODULE + SPEC + "from clipset.backbones.registry import BackboneEntry\n"
        "ENTRY = BackboneEntry(spec=make_with_spec()[0], locate=lambda: None, load=None)\n"
    )
    info = tmp_path / "their_package-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: their_package\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(
        "[clipset.backbones]\ntheirs = their_package:make\nline = their_package:ENTRY\n"
        "lost = their_package:nothing\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    spec, _ = load_backbone("theirs", frames=2, size=16)
    assert (spec.name, spec.dim) == ("theirs", 5)
    assert spec.weights.sha256 == sha256_of_files([tmp_path / "their_package.py"])
    assert find_backbone("line").spec.name == "colours"
    with pytest.raises(BackboneError, match="made here"):
        load_backbone("line")
    with pytest.raises(BackboneError, match="'lost' of their_package:nothing"):
        load_backbone("lost")


@pytest.mark.parametrize("frozen", [False, True])
def test_a_torchscript_file_is_a_backbone(tmp_path: Path, frozen: bool) -> None:
    path = write_script(tmp_path / "net.pt", frozen=frozen)
    spec, network = load_backbone(str(path), frames=2, size=16)
    assert (spec.name, spec.dim, spec.weights.sha256) == ("net.pt", 4, sha256_of_files([path]))
    clips = noise(3, 2, 16)
    found = open_engine(spec, network, device="cpu", engine="torch").features(clips)
    with torch.no_grad():
        expected = Pooled().mix(normalised_colours(clips))
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=1e-4)


SHAPES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "frames first": (Pooled, (1, 2, 3, 16, 16)),
    "channels first": (PooledChannelsFirst, (1, 3, 2, 16, 16)),
    "images": (PooledImage, (1, 3, 16, 16)),
}


@WITH_OPENVINO
@pytest.mark.parametrize("shape", SHAPES)
def test_an_openvino_file_is_a_backbone_whatever_way_it_is_fed(tmp_path: Path, shape: str) -> None:
    make, dims = SHAPES[shape]
    path = write_graph(tmp_path / "net.xml", make(), dims)
    spec, network = load_backbone(str(path), frames=2)
    assert (spec.dim, spec.frames, spec.size) == (4, 2, 16)
    assert spec.weights.sha256 == sha256_of_files([path, path.with_suffix(".bin")])
    engine = open_engine(spec, network)
    assert (engine.name, engine.device) == ("openvino", "cpu")
    clips = noise(3, 2, 16)
    with torch.no_grad():
        expected = Pooled().mix(normalised_colours(clips))
    torch.testing.assert_close(engine.features(clips), expected, atol=1e-5, rtol=1e-4)
    with pytest.raises(BackboneError, match="only openvino"):
        open_engine(spec, network, engine="torch")


@WITH_OPENVINO
def test_an_onnx_file_is_a_backbone(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(onnx_colour_mean((1, 2, 3, 16, 16)))
    spec, network = load_backbone(str(path))
    assert (spec.name, spec.dim, spec.frames, spec.size) == ("net.onnx", 3, 2, 16)
    clips = noise(2, 2, 16)
    found = open_engine(spec, network).features(clips)
    torch.testing.assert_close(found, normalised_colours(clips), atol=1e-5, rtol=1e-4)


def message(number: int, content: bytes | str | int) -> bytes:
    """A field of a protocol buffer."""
    if isinstance(content, int):
        return varint(number << 3) + varint(content)
    raw = content.encode() if isinstance(content, str) else content
    return varint(number << 3 | 2) + varint(len(raw)) + raw


def varint(number: int) -> bytes:
    low, rest = number & 127, number >> 7
    return bytes([low | 128]) + varint(rest) if rest else bytes([low])


def onnx_colour_mean(shape: tuple[int, ...]) -> bytes:
    """An ONNX file, byte by byte: the mean over frames, rows and columns."""

    def tensor(name: str, dims: tuple[int, ...]) -> bytes:
        sizes = b"".join(message(1, message(1, dim)) for dim in dims)
        return message(1, name) + message(2, message(1, message(1, 1) + message(2, sizes)))

    axes = b"".join(varint(axis) for axis in (1, 3, 4))
    axes_attribute = message(1, "axes") + message(8, axes) + message(20, 7)
    keep = message(1, "keepdims") + message(3, 0) + message(20, 2)
    node = message(1, "clips") + message(2, "feature") + message(4, "ReduceMean")
    node += message(5, axes_attribute) + message(5, keep)
    graph = message(1, node) + message(2, "net")
    graph += message(11, tensor("clips", shape)) + message(12, tensor("feature", (shape[0], 3)))
    return message(1, 8) + message(7, graph) + message(8, message(2, 13))


def refused(name: str | Path, **options: int) -> str:
    with pytest.raises(BackboneError) as caught:
        load_backbone(str(name), **options)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_file_that_gives_no_backbone_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "bad.py"
    path.write_text(
        "from torch import nn\n"
        "import torch\n"
        "number = 3\n"
        "def text(): return 'network'\n"
        "def fails(): raise RuntimeError('no weights')\n"
        "def wants(argument): pass\n"
        "def unpooled(): return nn.Identity()\n"
        "def strict(): return nn.Linear(7, 2)\n"
        "def damaged():\n"
        "    layer = nn.Linear(3, 2)\n"
        "    layer.weight.data[0] = torch.nan\n"
        "    return nn.Sequential(layer)\n"
    )
    assert "not found" in refused(tmp_path / "none.py:make")
    assert "needs the name of a function" in refused(path)
    assert "no function 'absent'" in refused(f"{path}:absent")
    assert "no function 'number'" in refused(f"{path}:number")
    assert "got str" in refused(f"{path}:text")
    assert "no weights" in refused(f"{path}:fails")
    assert "argument" in refused(f"{path}:wants")
    assert "(1, D)" in refused(f"{path}:unpooled", frames=2, size=8)
    assert "cannot run on a clip" in refused(f"{path}:strict", frames=2, size=8)
    assert "0.weight holds NaN" in refused(f"{path}:damaged")
    path.write_text("import nowhere_to_be_found")
    assert "nowhere_to_be_found" in refused(f"{path}:make")


def test_a_wrong_width_in_a_spec_is_refused(file: Path) -> None:
    file.write_text((MODULE + SPEC).replace("dim=5", "dim=6"))
    assert "5 numbers, its spec says 6" in refused(f"{file}:make_with_spec")


def test_weights_without_a_network_and_odd_bytes_are_no_torchscript(tmp_path: Path) -> None:
    torch.save(Pooled().state_dict(), tmp_path / "weights.pth")
    assert "file.py:make" in refused(tmp_path / "weights.pth")
    (tmp_path / "text.pt").write_text("hello")
    assert "not a TorchScript" in refused(tmp_path / "text.pt")
    (tmp_path / "empty.pt").touch()
    assert "is empty" in refused(tmp_path / "empty.pt")
    assert "not found" in refused(tmp_path / "none.pt")


@WITH_OPENVINO
def test_graphs_that_take_something_else_than_clips_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "net.onnx"
    path.write_bytes(struct.pack("<4I", 1, 2, 3, 4))
    assert "cannot read" in refused(path)
    graph = write_graph(tmp_path / "flat.xml", nn.Linear(3, 2), (1, 3))
    assert "a backbone takes float32 clips" in refused(graph)
    graph.with_suffix(".bin").unlink()
    assert "flat.bin" in refused(graph)


def test_a_file_brings_its_own_weights(file: Path) -> None:
    with pytest.raises(BackboneError, match="its own weights"):
        load_backbone(f"{file}:make", weights=file)
