"""The networks that made a store's features, loaded again.

A store may come from somebody else: code and hub names that its manifest holds are shown, never
used. A registered or installed backbone is known by its name; any other has to be named again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from torch import nn

from clipset.backbones.custom import is_installed
from clipset.backbones.registry import load_as
from clipset.errors import StoreError
from clipset.features.config import ExtractConfig
from clipset.features.store import IMPORTED, Manifest
from clipset.features.writer import difference


def names_to_load(
    manifest: Manifest, backbone: str | None = None, indices: Sequence[int] | None = None
) -> Mapping[int, str]:
    """By which names to load some backbones of a store (all by default), by their indices.

    `backbone` is what the user says: names as for `extract`, for all backbones of the store.
    """
    specs = manifest.backbones
    indices = range(len(specs)) if indices is None else indices
    if any(specs[index].name == IMPORTED for index in indices):
        raise StoreError("the features were imported: no backbone is known that could make more")
    if backbone is not None:
        names = ExtractConfig(backbone=backbone).backbone_names
        if len(names) != len(specs):
            raise StoreError(
                f"the features are those of {len(specs)} backbones, {len(names)} are named with "
                f"--backbone {backbone}; name {', '.join(spec.name for spec in specs)}"
            )
        return {index: names[index] for index in indices}
    recorded = {index: manifest.given_name(index) for index in range(len(specs))}
    for index in indices:
        if not is_installed(recorded[index]):
            raise StoreError(_unnamed(manifest, recorded, index))
    return {index: recorded[index] for index in indices}


def load_network(manifest: Manifest, index: int, name: str) -> nn.Module:
    """One of the networks of a store, found under `name`; an error if it is another one by now."""
    recorded = manifest.backbones[index]
    spec, network = load_as(recorded, name)
    spec = replace(spec, weights=recorded.weights)  # the hash is the same, the rest are words
    if recorded.name.startswith("hf:") and spec.name.startswith("hf:"):
        spec = replace(spec, name=recorded.name)  # a folder may lie somewhere else
    if spec != recorded:
        then, now = (replace(manifest, backbone=each, others=()) for each in (recorded, spec))
        raise StoreError(f"the features were made {difference(then, now)} as it is here")
    return network


def _unnamed(manifest: Manifest, recorded: Mapping[int, str], index: int) -> str:
    name, digest = recorded[index], manifest.backbones[index].weights.sha256 or "unknown"
    example = "hf:FOLDER" if name.startswith("hf:") else "FILE.py:make"
    words = [each if is_installed(each) else example for each in recorded.values()]
    return (
        f"the features were made with the backbone {name!r} (sha256 {digest[:12]}…): name it "
        f"yourself with --backbone {','.join(words)}; clipset neither runs nor downloads what a "
        f"store or run names"
    )
