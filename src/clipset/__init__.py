"""clipset: learn from sets of clips, and get better video features from any frozen backbone."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from clipset.api import embed, evaluate, extract, predict, pretrain, pretrain_end_to_end, search
    from clipset.backbones.registry import list_backbones, load_backbone
    from clipset.data.catalog import Catalog, read_catalog
    from clipset.features.store import FeatureStore
    from clipset.inference.run import load_run
    from clipset.pipeline import RunResult, run
    from clipset.pipeline import run_demo as demo
    from clipset.recipe import Recipe
    from clipset.training.checkpoint import ScaleModel

__all__ = [
    "Catalog", "FeatureStore", "Recipe", "RunResult", "ScaleModel", "demo", "embed", "evaluate",
    "extract", "list_backbones", "load_backbone", "load_run", "predict", "pretrain",
    "pretrain_end_to_end", "read_catalog", "run", "search",
]  # fmt: skip
_MODULES = {
    "api": ("embed", "evaluate", "extract", "predict", "pretrain", "pretrain_end_to_end", "search"),
    "backbones.registry": ("list_backbones", "load_backbone"),
    "data.catalog": ("Catalog", "read_catalog"),
    "features.store": ("FeatureStore",),
    "inference.run": ("load_run",),
    "pipeline": ("RunResult", "run"),
    "recipe": ("Recipe",),
    "training.checkpoint": ("ScaleModel",),
}
_ATTRIBUTES = {name: (module, name) for module, names in _MODULES.items() for name in names}
_ATTRIBUTES["demo"] = ("pipeline", "run_demo")


def __getattr__(name: str) -> Any:
    """Import a name when it is first used."""
    if name not in _ATTRIBUTES:
        raise AttributeError(f"module 'clipset' has no attribute {name!r}")
    module, attribute = _ATTRIBUTES[name]
    return getattr(import_module(f"clipset.{module}"), attribute)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
