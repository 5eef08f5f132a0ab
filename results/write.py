"""Write docs/results.md from head.md, notes/*.md and the summaries of studies beside this script.

python results/write.py          # writes the page
python results/write.py --check  # fails if the page is not up to date

A summary is `summary.md` of a study's folder, copied to `results/summaries/NAME.md`, with its
`summary.json` beside it.
"""

from __future__ import annotations

import argparse
import re
import sys
from pathlib import Path

from clipset.files import write_atomic

HERE = Path(__file__).resolve().parent
PAGE = HERE.parent / "docs" / "results.md"


def render(folder: Path = HERE) -> str:
    """The whole page: the head, each summary under the note of its name, then the other notes."""
    notes = {path.stem: path.read_text("utf-8").strip() for path in folder.glob("notes/*.md")}
    sections = [(folder / "head.md").read_text("utf-8").strip()]
    for path in sorted(folder.glob("summaries/*.md")):
        title, _, tables = path.read_text("utf-8").strip().partition("\n")
        command = f"python results/study.py results/studies/{title[2:]}.toml --data DATA --out DIR"
        heading, _, note = notes.pop(path.stem, f"## {title[2:]}").partition("\n")
        sections += [heading, note.strip(), re.sub("^#", "##", tables.strip(), flags=re.MULTILINE)]
        sections += [f"Command: `{command}`"]
    sections += [notes[name] for name in sorted(notes)]
    return "\n\n".join(section for section in sections if section) + "\n"


def main() -> None:
    """Write the page, or check it."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--check", action="store_true", help="only say whether it is up to date")
    parser.add_argument("--results", type=Path, default=HERE, metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=PAGE, metavar="FILE")
    options = parser.parse_args()
    text = render(options.results)
    if options.check:
        old = options.out.read_text("utf-8") if options.out.is_file() else ""
        sys.exit(
            f"{options.out.name} is not up to date; run results/write.py" if old != text else 0
        )
    write_atomic(options.out, text.encode())
    print(f"→ {options.out}")


if __name__ == "__main__":
    main()
