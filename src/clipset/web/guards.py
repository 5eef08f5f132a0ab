"""Guards: which requests are answered at all, and the headers that every answer has.

The page is private. Another page in the same browser must not read it (DNS rebinding: the name in
`Host` is checked), write to it (`Origin` must be our own) or embed it (fetch metadata). Beyond this
machine, a token is needed, too.
"""

from __future__ import annotations

import hmac
import ipaddress
import json
from urllib.parse import parse_qs, urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from clipset.web.models import MAX_JSON_BYTES, MAX_UPLOAD_BYTES

COOKIE_NAME = "clipset_token"
UPLOAD_PATH = "/api/uploads"
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "media-src 'self'; connect-src 'self'; frame-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "content-security-policy": PAGE_POLICY,
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "cross-origin-resource-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cache-control": "no-store",
}


class Guards:
    """Refuses requests that do not come from the page itself or from a program of the user.

    `hosts` are the names that the server may be called by; any IP address is one. Without a
    `token`, none is needed.
    """

    def __init__(self, app: ASGIApp, *, hosts: frozenset[str], token: str | None) -> None:
        self.app, self.hosts, self.token = app, hosts, token

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self.app(scope, receive, send)
            return
        if scope["type"] != "http":
            return  # no websockets
        headers = Headers(scope=scope)
        refusal = self._check_host(headers) or _check_source(scope, headers)
        is_first_visit = refusal is None and self._brings_token(scope)
        refusal = refusal or self._check_token(headers) or _check_size(scope, headers)

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                answer_headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    answer_headers.setdefault(name, value)
            await send(message)

        if is_first_visit:
            await self._send_cookie(send_with_headers)
        elif refusal is not None:
            await _send_error(send_with_headers, *refusal)
        else:
            await self.app(scope, receive, send_with_headers)

    def _check_host(self, headers: Headers) -> tuple[int, str] | None:
        """The name in `Host`; the port may differ, as it does behind `ssh -L`."""
        name = _host_name(headers.get("host", ""))
        if len(headers.getlist("host")) == 1 and (name in self.hosts or _is_address(name)):
            return None
        return 421, "this server is not called by that name; open the address that it printed"

    def _check_token(self, headers: Headers) -> tuple[int, str] | None:
        if self.token is None:
            return None
        scheme, _, bearer = headers.get("authorization", "").partition(" ")
        cookies = (part.strip().partition("=") for part in headers.get("cookie", "").split(";"))
        cookie = next((value for name, _, value in cookies if name == COOKIE_NAME), "")
        own = bearer if scheme.lower() == "bearer" else cookie
        if self._is_token(own):
            return None
        return 401, "a token is needed; open the address that `clipset serve` printed"

    def _is_token(self, text: str) -> bool:
        return self.token is not None and hmac.compare_digest(text.encode(), self.token.encode())

    def _brings_token(self, scope: Scope) -> bool:
        """Whether this is the first visit, with the token in the address."""
        if self.token is None or scope["path"] != "/" or scope["method"] != "GET":
            return False
        query = parse_qs(scope["query_string"].decode("latin-1"))
        return self._is_token(query.get("token", [""])[0])

    async def _send_cookie(self, send: Send) -> None:
        """Keep the token in a cookie, and show the page without the token in its address."""
        cookie = f"{COOKIE_NAME}={self.token}; Path=/; HttpOnly; SameSite=Strict"
        headers = [(b"location", b"/"), (b"set-cookie", cookie.encode()), (b"content-length", b"0")]
        await send({"type": "http.response.start", "status": 303, "headers": headers})
        await send({"type": "http.response.body", "body": b""})


def _check_size(scope: Scope, headers: Headers) -> tuple[int, str] | None:
    if "transfer-encoding" in headers:
        return 411, "send the body with a Content-Length"
    limit = MAX_UPLOAD_BYTES if scope["path"] == UPLOAD_PATH else MAX_JSON_BYTES
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdecimal() and int(length[:20]) <= limit):
        return 413, f"the body may have at most {limit:,} bytes, got {length[:20]}"
    return None


def _check_source(scope: Scope, headers: Headers) -> tuple[int, str] | None:
    """Refuse what another page asks for; following a link to the page itself is no such request."""
    origin, site = headers.get("origin"), headers.get("sec-fetch-site", "none")
    refusal = 403, "only the page of this server may ask for that"
    if origin is not None and origin.partition("://")[2] != headers.get("host"):
        return refusal
    is_link = scope["path"] == "/" and scope["method"] == "GET"
    is_link = is_link and headers.get("sec-fetch-mode") == "navigate"
    is_link = is_link and headers.get("sec-fetch-dest", "document") == "document"
    return None if site in ("none", "same-origin") or is_link else refusal


def _host_name(host: str) -> str:
    """The name without the port, in lower case."""
    try:
        return (urlsplit(f"//{host}").hostname or "").lower()
    except ValueError:
        return ""


def _is_address(name: str) -> bool:
    """Whether a host is an IP address: no other site can be called by it."""
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


async def _send_error(send: Send, status: int, detail: str) -> None:
    body = json.dumps({"detail": detail}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
