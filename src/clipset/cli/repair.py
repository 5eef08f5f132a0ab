"""`clipset repair`: extract damaged rows again."""

from __future__ import annotations

from pathlib import Path

from clipset.cli.app import COMPUTING, Computing, app, print_line, show_result


@app.command(name="repair")
def repair_command(
    store: Path,
    /,
    *,
    workers: int | None = None,
    timeout: float | None = None,
    backbone: str | None = None,
    common: Computing = COMPUTING,
) -> None:
    """Extract the rows again that `verify` reports, and only those. Exits with 1 if some are lost.

    Example: clipset repair store

    Parameters
    ----------
    store
        The store's folder.
    workers
        Decoding processes (one per core, at most 8; 0: decode in the main process).
    timeout
        Seconds after which a video counts as failed (300 by default); needs workers.
    backbone
        The store's backbone, if that is a file or a hub model: mine.py:make, hf:FOLDER.
    """
    from clipset.features.maintenance import repair_store

    done = repair_store(
        store, workers=workers, timeout=timeout, device=common.device, backbone=backbone
    )

    def show() -> None:
        for video, reason in done.failed.items():
            print_line(f"{video}: {reason}")
        print_line(
            f"{len(done.restored)} restored, {len(done.changed)} with different rows, "
            f"{len(done.failed)} lost → {store}"
        )

    result = {
        "store": store,
        "restored": done.restored,
        "changed": done.changed,
        "lost": done.failed,
    }
    show_result(result, common, show)
    if done.failed:
        raise SystemExit(1)
