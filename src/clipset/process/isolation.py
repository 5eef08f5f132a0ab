"""Python processes that import what this one imports, and nothing from the current folder.

Python searches the current folder (`python -m`), the script's folder and, for an empty or relative
entry of PYTHONPATH, the current folder again for modules: a `numpy.py` there would run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LAUNCHER = str(Path(__file__).with_name("launcher.py").absolute())


def python_command(module: str, *arguments: str) -> tuple[str, ...]:
    """The command that runs a module of this clipset in an isolated process."""
    path_json = json.dumps(module_path(), default=str)
    return (sys.executable, "-I", LAUNCHER, path_json, module, *arguments)


def module_path() -> list[str]:
    """`sys.path` without relative folders and those that Python adds by itself.

    Absolute folders of PYTHONPATH stay.
    """
    standard_library = str(Path(os.__file__).parent)
    first = sys.path.index(standard_library) if standard_library in sys.path else len(sys.path)
    script_path = getattr(sys.modules.get("__main__"), "__file__", None)
    automatic = {Path(script_path).resolve().parent} if script_path else set()
    with suppress(OSError):  # the current folder may have been deleted
        automatic.add(Path.cwd())
    automatic -= {Path(entry).resolve() for entry in _absolute_entries()}
    return [
        entry
        for index, entry in enumerate(sys.path)
        if Path(entry).is_absolute() and (index >= first or Path(entry).resolve() not in automatic)
    ]


def isolate_command() -> None:
    """Let this process and its children import from `module_path` alone."""
    sys.path[:] = module_path()
    if "PYTHONPATH" in os.environ:
        os.environ["PYTHONPATH"] = os.pathsep.join(_absolute_entries())


@contextmanager
def isolated_environment() -> Iterator[None]:
    """Within, processes that libraries start do not import from the current folder either."""
    variable_names = ("PYTHONPATH", "PYTHONSAFEPATH")
    previous_values = {name: os.environ[name] for name in variable_names if name in os.environ}
    os.environ |= {"PYTHONPATH": os.pathsep.join(_absolute_entries()), "PYTHONSAFEPATH": "1"}
    try:
        yield
    finally:
        for name in variable_names:
            os.environ.pop(name, None)
        os.environ |= previous_values


def _absolute_entries() -> list[str]:
    entries = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    return [entry for entry in entries if Path(entry).is_absolute()]
