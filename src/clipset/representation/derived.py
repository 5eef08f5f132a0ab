"""Arrays that are computed from a run's vectors, kept in a sealed file: map, components, index.

Such a file names the vectors by their checksum. It may be deleted, and is then computed again.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from clipset.checksums import find_damage, seal
from clipset.errors import OutputError
from clipset.files import write_atomic
from clipset.progress import log


def vectors_checksum(folder: Path) -> str:
    """The checksum of a folder's vectors."""
    with safe_open(folder / "vectors.safetensors", "np") as file:
        return str((file.metadata() or {}).get("checksum", ""))


def read_derived(path: Path) -> tuple[dict[str, np.ndarray], dict[str, str]] | None:
    """The arrays and facts of an intact file; None if there is no such file."""
    if not path.is_file():
        return None
    problem = find_damage(path)
    if problem is None:
        try:
            with safe_open(path, "np") as file:
                names = file.keys()  # it is no mapping
                return {name: file.get_tensor(name) for name in names}, file.metadata() or {}
        except (SafetensorError, OSError, TypeError) as error:
            problem = f"{path.name} cannot be read ({error})"
    log(f"{problem}; it is computed again")
    return None


def write_derived(path: Path, arrays: Mapping[str, np.ndarray], facts: Mapping[str, str]) -> None:
    """Write arrays and facts; a folder that cannot be written is no error."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    try:
        write_atomic(path, seal(save(contiguous, metadata=dict(facts))))
    except OutputError as error:
        log(f"{error.problem}; {path.name} is computed again next time")
