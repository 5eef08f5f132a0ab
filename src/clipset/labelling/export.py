"""Labels as files for other commands: a catalog, a table of spans, a head for `clipset predict`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from clipset.data.catalog import write_catalog
from clipset.errors import LabelError
from clipset.features.store import open_run_store
from clipset.files import write_atomic
from clipset.inference.head import LABELS, Head, HeadCard, labels_fingerprint, save_head
from clipset.labelling.head import RidgeHead
from clipset.labelling.vectors import CompactVectors
from clipset.model.config import ModelConfig
from clipset.probes.config import EvaluateConfig
from clipset.probes.inputs import VideoInputs
from clipset.probes.ordered import RidgeClassifier
from clipset.representation import DEFAULT_PARTS, VectorPart
from clipset.text import csv_text
from clipset.training.checkpoint import load_model


@dataclass(frozen=True, slots=True, kw_only=True)
class LabelExport:
    """The files of an export, and a command that uses them.

    There is no head with fewer than two classes; the command then pre-trains and evaluates anew.
    """

    catalog: Path
    spans: Path | None
    head: Path | None
    command: str


def export_labels(
    run_folder: Path,
    folder: Path,
    labels: Mapping[str, str],
    spans: Mapping[tuple[str, float, float], str],
) -> tuple[Path, Path | None]:
    """Write `catalog.csv`, the run's catalog with these labels, and `spans.csv` if there are spans.

    A video without one of these labels keeps that of the run's catalog.
    """
    catalog = open_run_store(run_folder).catalog
    labelled = (replace(video, label=labels.get(video.id, video.label)) for video in catalog)
    write_catalog(catalog.only(labelled), folder / "catalog.csv")
    if not spans:
        return folder / "catalog.csv", None
    rows = [(*span, label) for span, label in spans.items()]
    write_atomic(folder / "spans.csv", csv_text([("id", "start", "end", "label"), *rows]).encode())
    return folder / "catalog.csv", folder / "spans.csv"


def export_head(
    run_folder: Path, head: RidgeHead, components: CompactVectors, parts: tuple[VectorPart, ...]
) -> Path:
    """Write the head as `clipset predict --probe labels` loads it: on whole vectors, with a model.

    Components are linear in the vectors, so that both steps are one linear layer.
    """
    if parts not in (("clip",), DEFAULT_PARTS):
        raise LabelError(
            f"the run's vectors have the parts {','.join(parts)}; a head needs "
            f"{','.join(DEFAULT_PARTS)}: run `clipset run` again"
        )
    model = load_model(run_folder / "model") if parts == DEFAULT_PARTS else None
    manifest = open_run_store(run_folder).manifest
    tensors = {
        "mean": torch.from_numpy(components.mean),
        "scale": torch.ones(len(components.mean)),
        "weight": torch.from_numpy(components.basis @ head.weight),
        "bias": torch.from_numpy(head.bias),
    }
    inputs = VideoInputs(None if model is None else model.encoder, has_course=True)
    card = HeadCard(
        probe="ordered" if model is None else "scale_ordered",
        classes=head.classes,
        dim=manifest.backbone.dim,
        model=ModelConfig() if model is None else model.config,
        config=EvaluateConfig(),
        temperature=1.0,
        calibration_error=None,
        selected_on="leave-one-out",
        candidates=(),
        videos=len(head.left_out),
        seed=0,
        fingerprint=labels_fingerprint(manifest),
    )
    folder = run_folder / f"head-{LABELS}"
    save_head(Head(RidgeClassifier(tensors, inputs).eval(), card), folder)
    return folder
