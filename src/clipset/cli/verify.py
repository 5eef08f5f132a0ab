"""`clipset verify`: check a store or a run against its checksums."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from clipset.cli.app import COMMON, Common, Switch, app, print_line, show_result


@app.command(name="verify")
def verify_command(
    store: Path,
    /,
    *,
    videos: Annotated[bool, Switch, Parameter(show_default=False)] = False,
    common: Common = COMMON,
) -> None:
    """Check every stored row against its checksum. Exits with 1 if there are problems.

    Catalog, ledger, manifest and files are also compared with each other. Of a run, the model, the
    vectors and all other files with a checksum are checked, too.

    Example: clipset verify store

    Example: clipset verify runs/first --videos

    Parameters
    ----------
    store
        The folder of a store, or of a run.
    videos
        Also compare the video files with those that were read.
    """
    from clipset.features.store import FeatureStore, store_digest
    from clipset.features.verify import verify_store

    if (store / "run.json").is_file():
        from clipset.pipeline import verify_run

        problems, folder = verify_run(store, videos=videos), store / "store"
    else:
        problems, folder = verify_store(store, videos=videos), store
    opened = FeatureStore(folder)
    result = {
        "store": store,
        "videos": len(opened),
        "failed": len(opened.failed),
        "pending": len(opened.pending),
        "problems": dict(problems),
        "digest": store_digest(folder) if not problems else None,
    }

    def show() -> None:
        for video, problem in problems:
            print_line(f"{video}: {problem}")
        verdict = f"{len(problems)} with problems" if problems else "all as written"
        counts = f"{len(opened)} videos, {len(opened.failed)} failed, {len(opened.pending)} pending"
        print_line(f"{counts}: {verdict}")

    show_result(result, common, show)
    if problems:
        raise SystemExit(1)
