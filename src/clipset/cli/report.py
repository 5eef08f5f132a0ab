"""`clipset report`: the page of a run."""

from __future__ import annotations

from pathlib import Path

from clipset.cli import flags
from clipset.cli.app import app, show_result


@app.command(name="report")
def report_command(run: Path, /, *, common: flags.Common = flags.COMMON) -> None:
    """Write the report of a run again: one HTML file that opens offline.

    Example: clipset report runs/first

    Args:
        run: The folder of a run.
    """
    from clipset.report.run_page import report_run

    report_path = report_run(run)
    show_result({"report": report_path}, common, [str(report_path)])
