"""`python -I launcher.py PATH MODULE ARGUMENT…`: run a module of this very clipset.

PATH is `sys.path` for all other modules, as JSON. See isolation.py.
"""

from __future__ import annotations

import importlib.util
import json
import runpy
import sys
from pathlib import Path


def run_module() -> None:
    """Import this clipset, whichever else is installed, and run the module."""
    path, module = sys.argv[1:3]
    sys.path[:] = json.loads(path)
    package = Path(__file__).parents[1] / "__init__.py"
    spec = importlib.util.spec_from_file_location("clipset", package)
    assert spec is not None
    assert spec.loader is not None
    sys.modules["clipset"] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules["clipset"])
    del sys.argv[1:3]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    run_module()
