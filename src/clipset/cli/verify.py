"""`clipset verify`: check a store or a run against its checksums."""

from __future__ import annotations

from pathlib import Path

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.text import counted


@app.command(name="verify")
def verify_command(
    store: Path, /, *, videos: flags.Switch = False, common: flags.Common = flags.COMMON
) -> None:
    """Check every stored row against its checksum. Exits with 1 if there are problems.

    Catalog, ledger, manifest and files are also compared with each other. In a run, the outputs of
    all steps, the training metrics and all other files with a checksum are checked, too.

    Example: clipset verify store

    Example: clipset verify runs/first --videos

    Args:
        store: The folder of a store, or of a run.
        videos: Also compare the video files with those that were read.
    """
    from clipset.features.store import FeatureStore, store_digest
    from clipset.features.verify import verify_store

    if (store / "run.json").is_file():
        from clipset.pipeline import verify_run

        problems, folder = verify_run(store, videos=videos), store / "store"
    else:
        problems, folder = verify_store(store, videos=videos), store
    stored = FeatureStore(folder)
    counts = {"videos": len(stored), "failed": len(stored.failed), "pending": len(stored.pending)}
    digest = None if problems else store_digest(folder)
    lines = [f"{video}: {problem}" for video, problem in problems]
    verdict = f"{len(problems)} with problems" if problems else "all as written"
    others = f"{counts['failed']} failed, {counts['pending']} pending"
    lines.append(f"{counted(len(stored), 'video')}, {others}: {verdict}")
    result = {"store": store, **counts, "problems": dict(problems), "digest": digest}
    show_result(result, common, lines)
    if problems:
        raise SystemExit(1)
