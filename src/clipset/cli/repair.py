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
    """Extract the rows again that `verify` reports, and only those. Exits with 1 if some are lost.

    Example: clipset repair store

    Args:
        store: The store's folder.
        timeout: Seconds after which a video counts as failed (300 by default); needs workers.
    """
    from clipset.features.maintenance import repair_store

    done = repair_store(
        store, workers=workers, timeout=timeout, device=common.device, backbone=backbone
    )
    output_lines = [f"{video}: {reason}" for video, reason in done.failed.items()]
    count_text = f"{len(done.restored)} restored, {len(done.changed)} with different rows"
    output_lines.append(f"{count_text}, {len(done.failed)} lost → {store}")
    result = {"restored": done.restored, "changed": done.changed, "lost": done.failed}
    show_result({"store": store, **result}, common, output_lines)
    if done.failed:
        raise SystemExit(1)
