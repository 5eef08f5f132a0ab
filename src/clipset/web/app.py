"""The application: the page's files, the endpoints, errors of one line, and the guards."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from pathlib import Path

from fastapi import APIRouter, FastAPI, HTTPException, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse

from clipset.errors import ClipsetError, LockError, OutputError, VideoError
from clipset.text import visible
from clipset.web.guards import Guards
from clipset.web.label_routes import label_router
from clipset.web.media_routes import media_router
from clipset.web.routing import content_tag, has_tag
from clipset.web.run_routes import run_router
from clipset.web.search_routes import search_router
from clipset.web.state import ServerState

STATIC_TYPES = {
    ".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml",
    ".png": "image/png",
}  # fmt: skip
RASTER = "raster.js"  # of the report and of the page

page_router = APIRouter(include_in_schema=False)


def create_app(
    state: ServerState,
    *,
    hosts: frozenset[str] = frozenset({"localhost"}),
    token: str | None = None,
) -> FastAPI:
    """The application; its background work starts with it, and it closes the state."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        state.start()
        yield
        state.close()

    app = FastAPI(
        title="clipset",
        version=version("clipset"),
        description="The API of `clipset serve`: search, look at and label the videos of a run.",
        docs_url=None,  # its page loads scripts from elsewhere
        redoc_url=None,
        lifespan=lifespan,
    )
    app.state.server = state
    for router in (page_router, run_router, media_router, search_router, label_router):
        app.include_router(router)
    app.add_exception_handler(RequestValidationError, _answer_invalid)
    app.add_exception_handler(ClipsetError, _answer_refused)
    app.add_exception_handler(Exception, _answer_bug)
    app.add_middleware(Guards, hosts=hosts, token=token)
    return app


async def _answer_invalid(_request: Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = ".".join(str(part) for part in first["loc"])
    return _problem(422, f"{name}: {first['msg']}")


async def _answer_refused(_request: Request, error: Exception) -> Response:
    status = 400
    if isinstance(error, VideoError):
        status = 404
    elif isinstance(error, OutputError | LockError):
        status = 409
    return _problem(status, str(error))


async def _answer_bug(_request: Request, error: Exception) -> Response:
    return _problem(500, f"a bug of clipset: {type(error).__name__}")


def _problem(status: int, line: str) -> JSONResponse:
    text = visible(" ".join(line.split())).encode("utf-8", errors="replace").decode()
    return JSONResponse({"detail": text}, status)


@cache
def static_files() -> dict[str, Path]:
    """The files of the page by name."""
    folder = Path(str(files("clipset.web"))) / "static"
    paths = {path.name: path for path in folder.iterdir() if path.suffix in STATIC_TYPES}
    return paths | {RASTER: Path(str(files("clipset.report"))) / "assets" / RASTER}


@page_router.get("/")
async def get_page(request: Request) -> Response:
    return await get_static(request, "index.html")


@page_router.get("/static/{name}")
async def get_static(request: Request, name: str) -> Response:
    """A file of the page; small, so that it is read without the detour of a thread."""
    path = static_files().get(name)
    if path is None:
        raise HTTPException(404, "the page has no such file")
    content = path.read_bytes()
    tag = content_tag(content)
    headers = {"cache-control": "no-cache", "etag": f'"{tag}"'}
    if has_tag(request, tag):
        return Response(status_code=304, headers=headers)
    return Response(content, media_type=STATIC_TYPES[path.suffix], headers=headers)
