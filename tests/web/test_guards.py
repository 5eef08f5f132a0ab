"""Who is answered: the page itself and programs of the user, not other pages or machines."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from clipset.web.app import create_app
from clipset.web.models import MAX_JSON_BYTES
from clipset.web.server import is_loopback
from clipset.web.state import ServerState

TOKEN = "a-token-of-thirty-two-characters"
OWN = "http://localhost:8000"


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example:8000", "", "[", "a b"])
def test_a_name_that_is_not_ours_is_refused(client: TestClient, host: str) -> None:
    """DNS rebinding: the name of another site leads to this machine."""
    response = client.get("/api/run", headers={"host": host})
    assert response.status_code == 421
    assert "open the address" in response.json()["detail"]


@pytest.mark.parametrize("host", ["localhost:9000", "127.0.0.1", "[::1]:8000", "LOCALHOST"])
def test_our_own_names_are_answered_at_any_port(client: TestClient, host: str) -> None:
    assert client.get("/api/run", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"origin": "http://evil.example"}, 403),
        ({"origin": "http://localhost:3000"}, 403),
        ({"origin": "null"}, 403),
        ({"origin": OWN}, 200),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}, 403),
        ({"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}, 403),
        ({"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}, 403),
        ({"sec-fetch-site": "same-origin"}, 200),
        ({"sec-fetch-site": "none", "sec-fetch-mode": "navigate"}, 200),
    ],
)
def test_another_page_is_refused(client: TestClient, headers: dict[str, str], status: int) -> None:
    assert client.get("/api/videos/0/thumbnail", headers=headers).status_code == status


def test_a_link_to_the_page_may_be_followed_but_not_framed(client: TestClient) -> None:
    link = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}
    assert client.get("/", headers=link | {"sec-fetch-dest": "document"}).status_code != 403
    assert client.get("/", headers=link | {"sec-fetch-dest": "iframe"}).status_code == 403


@pytest.mark.parametrize("address", ["/", "/api/run", "/api/videos/0/file", "/nothing"])
def test_every_answer_has_the_strict_headers(client: TestClient, address: str) -> None:
    headers = client.get(address).headers
    assert "default-src 'none'" in headers["content-security-policy"]
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "cache-control" in headers


def test_bodies_are_bounded(client: TestClient) -> None:
    large = client.post("/api/search", content=b" " * (MAX_JSON_BYTES + 1))
    assert (large.status_code, set(large.json())) == (413, {"detail"})
    assert client.post("/api/search", content=iter([b"{}"])).status_code == 411
    uploaded = client.post("/api/uploads", headers={"content-length": "9" * 30})
    assert uploaded.status_code == 413
    deep = client.post("/api/search", content=b"[" * 100_000)
    assert deep.status_code in (400, 422)


def test_beyond_this_machine_a_token_is_needed(state: ServerState) -> None:
    client = TestClient(create_app(state, token=TOKEN), base_url=OWN, follow_redirects=False)
    for headers in ({}, {"authorization": "Bearer wrong"}, {"cookie": b"clipset_token=\xe9"}):
        refused = client.get("/api/run", headers=headers)
        assert (refused.status_code, set(refused.json())) == (401, {"detail"})
    assert client.get("/", params={"token": "wrong"}).status_code == 401
    allowed = client.get("/api/run", headers={"authorization": f"Bearer {TOKEN}"})
    assert allowed.status_code == 200
    visit = client.get("/", params={"token": TOKEN})
    assert (visit.status_code, visit.headers["location"]) == (303, "/")
    cookie = visit.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert client.get("/api/run").status_code == 200  # with the cookie
    evil = client.get("/", params={"token": TOKEN}, headers={"host": "evil.example"})
    assert evil.status_code == 421


def test_which_addresses_are_this_machine_alone() -> None:
    assert all(map(is_loopback, ("127.0.0.1", "127.1.2.3", "::1", "localhost")))
    assert not any(map(is_loopback, ("0.0.0.0", "::", "192.168.1.2", "example.org")))
