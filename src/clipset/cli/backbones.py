"""`clipset backbones`, `clipset backbones check`: the frozen networks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from clipset.cli import flags
from clipset.cli.app import VerbApp, app, make_table, show_result

if TYPE_CHECKING:
    from rich.table import Table

USAGE = """clipset backbones [list] [OPTIONS]
       clipset backbones check [OPTIONS] NAME"""
backbones_app = VerbApp(name="backbones", help_format="plaintext", usage=USAGE)
app.command(backbones_app)


@backbones_app.command(name="list")
@backbones_app.default
def backbones_command(*, common: flags.Common = flags.COMMON) -> None:
    """List the backbones: frozen networks that turn a clip into a feature.

    Every command with --backbone also takes hf:FOLDER (a Hugging Face model), file.py:make, the
    file backbone.safetensors of `clipset pretrain-backbone`, or a TorchScript, ONNX or OpenVINO
    file.

    Example: clipset backbones

    Example: clipset backbones check efficientnet_lite0
    """
    from clipset.backbones.check import backbone_rows

    rows = backbone_rows()
    show_result({"backbones": rows}, common, _backbone_lines(rows))


@backbones_app.command(name="check")
def backbones_check_command(
    name: str,
    /,
    *,
    frames: flags.Int | None = None,
    stride: flags.Int | None = None,
    size: flags.Int | None = None,
    engine: str = "auto",
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Load a backbone, run it on one clip, and print its feature's statistics and its speed.

    Example: clipset backbones check efficientnet_lite0

    Example: clipset backbones check mine.py:make --frames 8 --size 112

    Args:
        name: A listed name, hf:FOLDER, file.py:make, or a TorchScript, ONNX or OpenVINO file.
        frames: Frames of a clip (the backbone's own number by default).
        stride: Distance of a clip's frames, counted at 30 frames per second.
        size: Height and width of a clip in pixels.
        engine: auto, torch or openvino.
    """
    from clipset.backbones.check import check_backbone

    result = check_backbone(
        name, frames=frames, stride=stride, size=size, engine=engine, device=common.device,
        seed=common.random_seed,
    )  # fmt: skip
    spec = result.spec
    weights_text = f", {result.parameters:,} parameters" if result.parameters else ""
    lines = [
        f"{spec.name}: {spec.frames} frames, stride {spec.stride}, {spec.size} pixels",
        f"{result.engine} on {result.device}{weights_text}",
        f"loaded in {result.load_seconds:.1f} s, {result.clips_per_second:.1f} clips/s",
        f"feature of {spec.dim} numbers: mean {result.mean:.4g}  std {result.std:.4g}  "
        f"min {result.min:.4g}  max {result.max:.4g}  norm {result.norm:.4g}  "
        f"zeros {result.zeros:.1%}",
    ]
    if not result.repeatable:
        lines.append("the same clip gave another feature the second time: not a frozen backbone")
    show_result(result, common, lines)


def _backbone_lines(rows: Sequence[Any]) -> Iterator[str | Table]:
    """The table of backbones, then where their weights come from."""
    from rich.table import Column

    facts = ("dim", "frames", "stride", "size", "licence")
    columns = (Column("name", no_wrap=True), *facts, Column("weights", no_wrap=True))
    table_rows = []
    for row in rows:
        fact_texts = (str(getattr(row, fact) or "–") for fact in facts)
        table_rows.append((row.name, *fact_texts, "ready" if row.available else "missing"))
    yield make_table(columns, table_rows)
    for row in sorted(rows, key=lambda row: not row.available):
        if row.available:
            yield f"{row.name}: {row.file + ' from ' if row.file else ''}{row.source}"
        else:
            yield f"{row.name}: weights are missing; {row.how_to_get}"
