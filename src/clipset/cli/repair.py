"""`clipset repair`: extract damaged rows again."""

from __future__ import annotations

from pathlib import Path

from clipset.cli import flags
from clipset.cli.app import app, show_result


@app.command(name="repair")
def repair_command(
    store: Path,
    /,
    *,
    workers: flags.Workers = None,
    timeout: float | None = None,
    backbone: flags.OwnBackbone = None,
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Extract the damaged rows of a store again: those that `clipset verify` reports.

    Exits with 1 if the rows of a video could not be extracted again.

    Example: clipset repair store

    Args:
        store: The store's folder.
        timeout: Seconds after which a video counts as failed (300 by default); not allowed with
            --workers 0.
    """
    from clipset.features.maintenance import repair_store

    done = repair_store(
        store, workers=workers, timeout=timeout, device=common.device, backbone=backbone
    )
    lines = [f"{video}: {reason}" for video, reason in done.failed.items()]
    counts = f"{len(done.restored)} restored, {len(done.changed)} with different rows"
    lines.append(f"{counts}, {len(done.failed)} lost → {store}")
    result = {"restored": done.restored, "changed": done.changed, "lost": done.failed}
    show_result({"store": store, **result}, common, lines)
    if done.failed:
        raise SystemExit(1)
