"""Probes by name: one file and one class for each kind."""

from __future__ import annotations

from torch import Tensor, nn

from clipset.model.config import ModelConfig
from clipset.model.encoder import SetEncoder
from clipset.probes.attentive import AttentiveProbe
from clipset.probes.base import Probe, ProbeSetup
from clipset.probes.config import EvaluateConfig, Features, ProbeKey, ProbeName
from clipset.probes.finetune import FinetuneProbe
from clipset.probes.knn import CourseKNNProbe, KNNProbe
from clipset.probes.linear import LinearProbe
from clipset.probes.mlp import MLPProbe
from clipset.probes.ordered import OrderedProbe
from clipset.probes.transformer import TransformerProbe

PROBES: dict[ProbeName, tuple[Features, type[Probe]]] = {
    "knn": ("backbone", KNNProbe),
    "scale_knn": ("scale", KNNProbe),
    "linear": ("backbone", LinearProbe),
    "scale_linear": ("scale", LinearProbe),
    "mlp": ("backbone", MLPProbe),
    "transformer": ("backbone", TransformerProbe),
    "finetune": ("scale", FinetuneProbe),
    "course_knn": ("backbone", CourseKNNProbe),
    "scale_course_knn": ("scale", CourseKNNProbe),
    "ordered": ("backbone", OrderedProbe),
    "scale_ordered": ("scale", OrderedProbe),
    "attentive": ("backbone", AttentiveProbe),
    "scale_attentive": ("scale", AttentiveProbe),
}


def probe_key(name: ProbeName) -> ProbeKey:
    """The features and kind of a probe."""
    features, kind = PROBES[name]
    return ProbeKey(features, kind.kind)


def find_name(key: ProbeKey) -> ProbeName:
    """The name of a probe with these features and of this kind."""
    return next(name for name in PROBES if probe_key(name) == key)


def make_probe(name: ProbeName, setup: ProbeSetup) -> Probe:
    """A probe, ready to search and to fit."""
    features, kind = PROBES[name]
    return kind(setup, features)


def rebuild_classifier(
    name: ProbeName, state: dict[str, Tensor], config: EvaluateConfig, *, num_outputs: int,
    feature_dim: int, model: ModelConfig,
) -> nn.Module:  # fmt: skip
    """A fitted classifier from its `state_dict`."""
    features, kind = PROBES[name]
    has_encoder = features == "scale" or issubclass(kind, TransformerProbe)
    encoder = SetEncoder(feature_dim, model) if has_encoder else None
    classifier = kind.rebuild(state, config, num_outputs, encoder)
    classifier.load_state_dict(state)
    return classifier.eval()
