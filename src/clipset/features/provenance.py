"""Loads the network that made a store's features.

A store may come from somebody else: code and hub names in its manifest are shown, never used. A
registered or installed backbone is loaded by its name; any other must be named by the user.
"""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from clipset.backbones.custom import is_installed
from clipset.backbones.registry import load_recorded_backbone
from clipset.errors import StoreError
from clipset.features.store import IMPORTED, Manifest
from clipset.features.store_check import describe_difference


def name_to_load(manifest: Manifest, backbone: str | None = None) -> str:
    """The name to load a store's backbone by; `backbone` is the name that the user gives."""
    if manifest.backbone.name == IMPORTED:
        raise StoreError("the features were imported: no backbone is known that could make more")
    if backbone is not None:
        return backbone.strip()
    name = manifest.backbone_name
    if not is_installed(name):
        digest = manifest.backbone.weights.sha256 or "unknown"
        example = "hf:FOLDER" if name.startswith("hf:") else "FILE.py:make"
        raise StoreError(
            f"the features were made with the backbone {name!r} (sha256 {digest[:12]}…): name it "
            f"yourself with --backbone {example}; clipset neither runs nor downloads what a store "
            f"or run names"
        )
    return name


def load_network(manifest: Manifest, name: str) -> nn.Module:
    """Load a store's network by a name; an error if it is not the same one."""
    recorded = manifest.backbone
    spec, network = load_recorded_backbone(recorded, name)
    spec = replace(spec, weights=recorded.weights)  # the hash is the same, the rest are words
    if recorded.name.startswith("hf:") and spec.name.startswith("hf:"):
        spec = replace(spec, name=recorded.name)  # the folder may have moved
    if spec != recorded:
        difference = describe_difference(manifest, replace(manifest, backbone=spec))
        raise StoreError(f"the features were made {difference} as it is here")
    return network
