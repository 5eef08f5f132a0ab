"""A process that holds a folder's lock until it is told to end: `python writer.py FOLDER`."""

import sys
from pathlib import Path

from clipset.locks import exclusive

with exclusive(Path(sys.argv[1])):
    sys.stdout.write("locked\n")
    sys.stdout.flush()
    sys.stdin.read()
