"""`clipset verify`: check a store or a run against its checksums."""

from __future__ import annotations

from pathlib import Path

from clipset.cli import flags
from clipset.cli.app import app, show_result


@app.command(name="verify")
def verify_command(
    store: Path, /, *, videos: flags.Switch = False, common: flags.Common = flags.COMMON
) -> None:
    """Check every stored row against its checksum. Exits with 1 if there are problems.

    Catalog, ledger, manifest and files are also compared with each other. Of a run, the model, the
    vectors and all other files with a checksum are checked, too.

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

        problems, store_folder = verify_run(store, videos=videos), store / "store"
    else:
        problems, store_folder = verify_store(store, videos=videos), store
    feature_store = FeatureStore(store_folder)
    video_counts = {
        "videos": len(feature_store),
        "failed": len(feature_store.failed),
        "pending": len(feature_store.pending),
    }
    content_digest = store_digest(store_folder) if not problems else None
    result = {"store": store, **video_counts, "problems": dict(problems), "digest": content_digest}
    verdict = f"{len(problems)} with problems" if problems else "all as written"
    output_lines = [f"{video}: {problem}" for video, problem in problems]
    summary = ", ".join(f"{number} {name}" for name, number in video_counts.items())
    output_lines.append(f"{summary}: {verdict}")
    show_result(result, common, output_lines)
    if problems:
        raise SystemExit(1)
