"""Addresses beside the data: sessions, health, metrics, the API's description and the viewer."""

import asyncio
import json
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any

from fastapi import APIRouter, HTTPException, Request, Response
from fastapi.responses import FileResponse, HTMLResponse, PlainTextResponse, RedirectResponse

from recap.service.answers import API, PROBLEMS, SessionAnswer, TheService
from recap.service.auth import COOKIE, SESSION_SECONDS

sessions = APIRouter(prefix=API, tags=["session"], responses=PROBLEMS)
health = APIRouter(tags=["health"])
measures = APIRouter(tags=["health"], responses=PROBLEMS)
site = APIRouter(include_in_schema=False)
_LONGEST_SESSION_BODY = 4096
_METHODS = ("get", "post", "delete")
_TYPES = {
    ".html": "text/html; charset=utf-8",
    ".js": "text/javascript; charset=utf-8",
    ".mjs": "text/javascript; charset=utf-8",
    ".css": "text/css; charset=utf-8",
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".woff2": "font/woff2",
    ".json": "application/json",
    ".txt": "text/plain; charset=utf-8",
}
_BODY = {
    "requestBody": {
        "required": True,
        "content": {
            "application/json": {
                "schema": {
                    "type": "object",
                    "properties": {"token": {"type": "string"}},
                    "required": ["token"],
                }
            }
        },
    }
}


def static_files() -> dict[str, Path]:
    """List the viewer's files by their addresses. What is not listed here does not exist."""
    root = Path(str(files("recap.service") / "static"))
    found = [path for path in root.rglob("*") if path.is_file() and path.suffix in _TYPES]
    return {path.relative_to(root).as_posix(): path for path in found}


@sessions.get("/session")
def show_session(request: Request, service: TheService) -> SessionAnswer:
    """Tell if a token is needed here, and if this browser has given it."""
    gate = service.gate
    return SessionAnswer(needs_token=gate.needs_token, signed_in=gate.admits(request))


@sessions.post("/session", status_code=204, openapi_extra=_BODY)
async def sign_in(request: Request, service: TheService) -> Response:
    """Exchange the token for a cookie, which scripts cannot read."""
    given = await _given_token(request, service.settings.read_seconds)
    if service.gate.needs_token and not service.gate.is_token(given):
        service.gate.count_wrong(request)
        raise HTTPException(401, "This is not the token.")
    response = Response(status_code=204)
    response.set_cookie(
        COOKIE,
        service.gate.new_session(),
        max_age=SESSION_SECONDS,
        httponly=True,
        samesite="strict",
        # A client that lies about having come over TLS harms its own cookie only.
        secure="https" in (request.url.scheme, request.headers.get("x-forwarded-proto")),
    )
    return response


@sessions.delete("/session", status_code=204)
def sign_out() -> Response:
    """Forget the cookie."""
    response = Response(status_code=204)
    response.delete_cookie(COOKIE)
    return response


@health.get("/healthz", responses={503: {"description": "Not well."}})
def show_health(service: TheService) -> dict[str, str]:
    """Tell if the service works."""
    if not service.workers.are_alive():
        raise HTTPException(503, "A worker has ended.")
    service.jobs.waiting()
    return {"status": "ok"}


@measures.get("/metrics", response_class=PlainTextResponse)
def show_metrics(service: TheService) -> PlainTextResponse:
    """Counts and times, for Prometheus."""
    text = service.metrics.text(service.jobs.counts())
    return PlainTextResponse(text, media_type="text/plain; version=0.0.4; charset=utf-8")


@site.get("/")
def show_viewer(request: Request) -> Response:
    """The viewer."""
    return _static(request, "index.html")


@site.get("/static/{name:path}")
def show_static(request: Request, name: str) -> Response:
    """A file of the viewer."""
    return _static(request, name)


@site.get("/docs")
def to_docs() -> RedirectResponse:
    """Lead to the description from the address where people look for it."""
    return RedirectResponse("/api/docs")


@site.get("/api/docs")
def show_docs(request: Request) -> HTMLResponse:
    """The API, to read."""
    return HTMLResponse(_api_page(request.app.openapi()))


@site.get("/api/docs.css")
def show_docs_style(request: Request) -> Response:
    """Show the style of that page."""
    return _static(request, "docs.css")


def _static(request: Request, name: str) -> Response:
    path = request.app.state.static.get(name)
    if path is None:
        raise HTTPException(404, "Not here.")
    headers = {"Cache-Control": "no-cache"}
    return FileResponse(path, media_type=_TYPES[path.suffix], headers=headers)


async def _given_token(request: Request, seconds: float) -> str:
    body = b""
    try:
        async with asyncio.timeout(seconds):
            async for block in request.stream():
                body += block
                if len(body) > _LONGEST_SESSION_BODY:
                    raise HTTPException(413, "This is longer than any token.")
    except TimeoutError as error:
        raise HTTPException(408, "The token stood still for too long. Send it again.") from error
    try:
        given: Any = json.loads(body)
        return str(given["token"])
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise HTTPException(422, 'Send {"token": "…"} as JSON.') from error


def _api_page(description: dict[str, Any]) -> str:
    """Write a page from the API's own description; nothing in it is fetched from anywhere."""
    groups: dict[str, list[str]] = {}
    for address, methods in description["paths"].items():
        for method in (m for m in _METHODS if m in methods):
            group = methods[method].get("tags", ["other"])[0]
            groups.setdefault(group, []).append(_operation(method, address, methods[method]))
    info = description["info"]
    body = "".join(f"<h2>{escape(name)}</h2>{''.join(parts)}" for name, parts in groups.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(info['title'])} API</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="docs.css"></head><body>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info.get('description', ''))}</p>"
        '<p>As JSON: <a href="openapi.json">openapi.json</a></p>'
        f"{body}</body></html>"
    )


def _operation(method: str, address: str, operation: dict[str, Any]) -> str:
    rows = [_parameter(parameter) for parameter in operation.get("parameters", [])]
    rows += _fields(operation.get("requestBody"))
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    answers = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    return (
        f'<section><h3><code><span class="method">{method.upper()}</span>'
        f"{escape(address)}</code></h3><p>{escape(operation.get('description', ''))}</p>"
        f"{table}<details><summary>Answers</summary><table>{answers}</table></details></section>"
    )


def _parameter(parameter: dict[str, Any]) -> str:
    kind = parameter.get("schema", {}).get("type", "")
    return _row(parameter["name"], f"{parameter['in']} {kind}", parameter.get("required", False))


def _fields(body: dict[str, Any] | None) -> list[str]:
    rows = []
    for kind, content in (body or {}).get("content", {}).items():
        schema = content["schema"]
        for name, field in schema.get("properties", {}).items():
            what = "files" if field["type"] == "array" else field.get("description", field["type"])
            needed = name in schema.get("required", [])
            rows.append(_row(name, f"{what} ({kind})", needed))
    return rows


def _row(name: str, what: str, required: bool) -> str:
    need = "required" if required else ""
    cells = (f"<code>{escape(name)}</code>", escape(what), need)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
