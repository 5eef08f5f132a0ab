"""`backbones`, `backbones check`: the frozen networks."""

from __future__ import annotations

from cyclopts import App

from clipset.cli.app import COMMON, Common, app, show_result
from clipset.cli.tables import print_backbones, print_check

backbones_app = App(name="backbones", help_format="plaintext")
app.command(backbones_app)


@backbones_app.command(name="list")
@backbones_app.default
def backbones(*, common: Common = COMMON) -> None:
    """List the frozen networks, or check one of them.

    Every verb that takes --backbone also takes hf:FOLDER (a model of Hugging Face), file.py:make,
    or a TorchScript, ONNX or OpenVINO file.

    Example: clipset backbones

    Example: clipset backbones check efficientnet_lite0
    """
    from clipset.backbones.check import backbone_rows

    rows = backbone_rows()
    show_result({"backbones": rows}, common, lambda: print_backbones(rows))


@backbones_app.command(name="check")
def backbones_check(
    name: str,
    *,
    frames: int | None = None,
    stride: int | None = None,
    size: int | None = None,
    engine: str = "auto",
    common: Common = COMMON,
) -> None:
    """Load a backbone, encode a clip, print statistics of its feature and its speed.

    Example: clipset backbones check efficientnet_lite0

    Example: clipset backbones check mine.py:make --frames 8 --size 112

    Parameters
    ----------
    name
        A name of the list, hf:FOLDER, file.py:make, or a TorchScript, ONNX or OpenVINO file.
    frames
        Frames of a clip (the backbone's own number if not given).
    stride
        Distance of a clip's frames, counted at 30 frames a second.
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
