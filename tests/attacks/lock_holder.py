"""A process that holds a folder's lock until it is ended: `python lock_holder.py FOLDER`."""

import sys
from pathlib import Path

from clipset.process.locks import exclusive

if __name__ == "__main__":
    with exclusive(Path(sys.argv[1])):
        sys.stdout.write("locked\n")
        sys.stdout.flush()
        sys.stdin.read()
