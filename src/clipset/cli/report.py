"""`clipset report`: the page of a run."""

from __future__ import annotations

from pathlib import Path

from clipset.cli.app import COMMON, Common, app, print_line, show_result


@app.command(name="report")
def report_command(run: Path, /, *, common: Common = COMMON) -> None:
    """Write the report of a run again: one HTML file that opens offline.

    Example: clipset report runs/first

    Parameters
    ----------
    run
        The folder of a run.
    """
    from clipset.report.run_page import report_run

    page = report_run(run)
    show_result({"report": page}, common, lambda: print_line(page))
