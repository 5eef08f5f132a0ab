"""`clipset serve`: look at a run, search and label it in a browser."""

from __future__ import annotations

from pathlib import Path

from clipset.cli import flags
from clipset.cli.app import app
from clipset.errors import ConfigError


@app.command(name="serve")
def serve_command(
    run: Path,
    /,
    *,
    host: str = "127.0.0.1",
    port: flags.Int = 8000,
    no_browser: flags.Switch = False,
    cache_gb: float = 2.0,
    backbone: flags.OwnBackbone = None,
    common: flags.Computing = flags.COMPUTING,
) -> None:
    """Open a run in the browser: search, look at and label its videos. Ctrl-C ends it.

    Nothing leaves this machine. With another --host, visitors need the token that is printed.

    Example: clipset serve runs/first

    Example: clipset serve runs/first --port 8080 --no-browser

    Args:
        run: The folder of a finished run.
        host: The address to listen on; 0.0.0.0: all addresses of this machine.
        port: The port to listen on (0: any free one).
        no_browser: Print the address only.
        cache_gb: Disk space for thumbnails and previews, in the run's folder.
    """
    if not 0.01 <= cache_gb <= 1e6:
        raise ConfigError(f"cache-gb must be at least 0.01, got {cache_gb:g}")
    try:
        import fastapi  # noqa: F401
        import uvicorn  # noqa: F401
    except ImportError:
        raise ConfigError(
            "the page needs FastAPI and uvicorn; pip install 'clipset[web]'"
        ) from None
    from clipset.progress import set_quiet
    from clipset.web.server import serve

    set_quiet(True)
    serve(
        run, host=host, port=port, open_browser=not no_browser, device=common.device,
        backbone=backbone, cache_bytes=round(cache_gb * 1e9),
    )  # fmt: skip
