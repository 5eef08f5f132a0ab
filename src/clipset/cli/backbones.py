"""`clipset backbones`, `clipset backbones check`: the frozen networks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cyclopts import App

from clipset.cli.app import (
    COMMON,
    COMPUTING,
    Common,
    Computing,
    app,
    print_line,
    print_table,
    show_result,
)

backbones_app = App(name="backbones", help_format="plaintext")
app.command(backbones_app)


@backbones_app.command(name="list")
@backbones_app.default
def backbones_command(*, common: Common = COMMON) -> None:
    """List the frozen networks, or check one of them.

    Every command with --backbone also takes hf:FOLDER (a Hugging Face model), file.py:make, or a
    TorchScript, ONNX or OpenVINO file.

    Example: clipset backbones

    Example: clipset backbones check efficientnet_lite0
    """
    from clipset.backbones.check import backbone_rows

    rows = backbone_rows()
    show_result({"backbones": rows}, common, lambda: print_backbones(rows))


@backbones_app.command(name="check")
def backbones_check_command(
    name: str,
    /,
    *,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    engine: str = "auto",
    common: Computing = COMPUTING,
) -> None:
    """Load a backbone, run it on one clip, and print its feature's statistics and its speed.

    Example: clipset backbones check efficientnet_lite0

    Example: clipset backbones check mine.py:make --frames 8 --size 112

    Parameters
    ----------
    name
        A listed name, hf:FOLDER, file.py:make, or a TorchScript, ONNX or OpenVINO file.
    frames
        Frames of a clip (the backbone's own number by default).
    stride
        Distance of a clip's frames, counted at 30 frames per second.
    size
        Height and width of a clip in pixels.
    engine
        auto, torch or openvino.
    """
    from clipset.backbones.check import check_backbone

    result = check_backbone(
        name, frames=frames, stride=stride, size=size, engine=engine, device=common.device,
        seed=common.seed,
    )  # fmt: skip
    show_result(result, common, lambda: print_check(result))


def print_backbones(rows: Sequence[Any]) -> None:
    """The table of backbones, then where their weights come from."""
    from rich.table import Column

    names = ("dim", "frames", "stride", "size", "licence")
    columns = (Column("name", no_wrap=True), *names, Column("weights", no_wrap=True))
    cells = []
    for row in rows:
        facts = ("–" if getattr(row, name) is None else str(getattr(row, name)) for name in names)
        cells.append((row.name, *facts, "ready" if row.available else "missing"))
    print_table(columns, cells)
    for row in rows:
        if row.available:
            print_line(f"{row.name}: {row.file + ' from ' if row.file else ''}{row.source}")
    for row in rows:
        if not row.available:
            print_line(f"{row.name}: weights are missing; {row.how_to_get}")


def print_check(result: Any) -> None:
    """What `backbones check` measured."""
    spec = result.spec
    print_line(f"{spec.name}: {spec.frames} frames, stride {spec.stride}, {spec.size} pixels")
    weights = f", {result.parameters:,} parameters" if result.parameters else ""
    print_line(f"{result.engine} on {result.device}{weights}")
    print_line(f"loaded in {result.load_seconds:.1f} s, {result.clips_per_second:.1f} clips/s")
    statistics = ("mean", "std", "min", "max", "norm")
    values = "  ".join(f"{name} {getattr(result, name):.4g}" for name in statistics)
    print_line(f"feature of {spec.dim} numbers: {values}  zeros {result.zeros:.1%}")
    if not result.repeatable:
        print_line("the same clip gave another feature the second time: not a frozen backbone")
