"""`clipset merge`: one store from several."""

from __future__ import annotations

from pathlib import Path

from clipset.cli import flags
from clipset.cli.app import app, show_result
from clipset.text import counted


@app.command(name="merge", usage="clipset merge --out PATH [OPTIONS] STORES...")
def merge_command(*stores: Path, out: Path, common: flags.Common = flags.COMMON) -> None:
    """Merge several stores into one, such as the parts of `clipset extract --part`.

    All stores must have been made with the same settings.

    Example: clipset merge half-1 half-2 --out store

    Args:
        stores: The folders of the stores, at least one; their videos keep this order.
        out: The merged store's folder.
    """
    from clipset.features.maintenance import merge_stores

    merged = merge_stores(stores, out)
    counts = {"videos": len(merged), "failed": len(merged.failed), "pending": len(merged.pending)}
    summary_line = f"{counted(len(merged), 'video')}, {len(merged.failed)} failed → {out}"
    show_result({"store": out, **counts}, common, [summary_line])
