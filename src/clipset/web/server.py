"""serve(): a run on this machine's own address, until Ctrl-C."""

from __future__ import annotations

import asyncio
import gc
import ipaddress
import logging
import secrets
import socket
import sys
import webbrowser
from pathlib import Path

from clipset.errors import ConfigError
from clipset.text import visible
from clipset.web.state import CACHE_BYTES, ServerState

LOCAL_ADDRESS = "127.0.0.1"
DEFAULT_PORT = 8000


def serve(
    run: str | Path,
    *,
    host: str = LOCAL_ADDRESS,
    port: int = DEFAULT_PORT,
    open_browser: bool = True,
    device: str = "auto",
    backbone: str | None = None,
    cache_bytes: int = CACHE_BYTES,
) -> None:
    """Serve a run until Ctrl-C. Another host than 127.0.0.1 needs the token that is printed."""
    import uvicorn

    from clipset.web.app import create_app

    listener = open_listener(host, port)
    with listener:
        gc.disable()  # a run with many videos has millions of objects that stay: no need to look
        state = ServerState(Path(run), device=device, backbone=backbone, cache_bytes=cache_bytes)
        gc.freeze()
        gc.enable()
        token = None if is_loopback(host) else secrets.token_urlsafe(24)
        names = frozenset({"localhost", host.lower(), socket.gethostname().lower()})
        app = create_app(state, hosts=names, token=token)
        address = f"http://{_url_host(host)}:{listener.getsockname()[1]}/"
        address += "" if token is None else f"?token={token}"
        sys.stdout.write(visible(f"{state.run.name}: {len(state.run)} videos") + "\n")
        sys.stdout.write(f"{address}\nCtrl-C ends the server\n")
        sys.stdout.flush()
        config = uvicorn.Config(
            app, log_level="warning", access_log=False, server_header=False, date_header=False,
            timeout_graceful_shutdown=2, lifespan="on",
        )  # fmt: skip
        logging.getLogger("uvicorn.error").addFilter(is_worth_a_line)
        server = uvicorn.Server(config)
        if open_browser:
            _open_browser(address)
        try:
            server.run(sockets=[listener])
        except KeyboardInterrupt:  # uvicorn raises it again after the end
            pass
        finally:
            state.close()


def is_worth_a_line(record: logging.LogRecord) -> bool:
    """Whether a message of uvicorn is more than a request that Ctrl-C has cut off."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))


def open_listener(host: str, port: int) -> socket.socket:
    """A socket that listens; ConfigError if the address is in use or not one of this machine."""
    if not 0 <= port < 2**16:
        raise ConfigError(f"port must be from 0 to {2**16 - 1} (0: any free one), got {port}")
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError):
        raise ConfigError(f"host {host!r} is no address; use 127.0.0.1 or 0.0.0.0") from None
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        listener.listen(128)
    except OSError as error:
        listener.close()
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(
            f"cannot listen on {host}:{port}: {reason}; give another --port "
            "(0: any free one) or --host"
        ) from None
    return listener


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach an address."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() == "localhost"


def _url_host(host: str) -> str:
    """The host in an address that a browser opens: that of any interface is this machine."""
    if host in ("0.0.0.0", "::", ""):
        return socket.gethostname()
    return f"[{host}]" if ":" in host else host


def _open_browser(address: str) -> None:
    """Open the page if there is a browser; the address is printed anyway."""
    try:
        webbrowser.open(address)
    except (webbrowser.Error, OSError):
        return
