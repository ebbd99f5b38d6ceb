"""The web application: routes, and what stands before all of them."""

import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from anyio import to_thread
from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse
from starlette.concurrency import run_in_threadpool

from recap.errors import HTTP_STATUSES, RecapError, code_of
from recap.service import routes_bundles, routes_jobs, routes_results, routes_site
from recap.service.headers import SecurityHeaders
from recap.service.logs import Observed
from recap.service.requests import API, own_pages_only, signed_in
from recap.service.service import Service, build_service
from recap.service.settings import ServerSettings


def create_app(settings: ServerSettings) -> FastAPI:
    """The application. It holds the data folder from now on, and works while it is served."""
    from recap import __version__

    service = build_service(settings)
    app = FastAPI(
        title="recap",
        version=__version__,
        description="Scores medical images for anomalies. Research use only.",
        docs_url=None,
        redoc_url=None,
        openapi_url="/api/openapi.json",
        lifespan=_lifespan,
        dependencies=[Depends(own_pages_only)],
    )
    app.state.service = service
    app.state.stopping = threading.Event()
    app.state.static = routes_site.static_files()
    _include_routes(app)
    app.add_exception_handler(RecapError, _refused)
    app.add_middleware(Observed, metrics=service.metrics)
    app.add_middleware(SecurityHeaders)
    return app


def _include_routes(app: FastAPI) -> None:
    private = [Depends(signed_in)]
    for module in (routes_jobs, routes_results, routes_bundles):
        app.include_router(module.router, dependencies=private)
    app.include_router(routes_site.sessions)
    for prefix in ("", API):
        shown = prefix == API
        app.include_router(routes_site.health, prefix=prefix, include_in_schema=shown)
        app.include_router(
            routes_site.measures, prefix=prefix, include_in_schema=shown, dependencies=private
        )
    app.include_router(routes_site.site)


@asynccontextmanager
async def _lifespan(app: FastAPI) -> AsyncIterator[None]:
    service: Service = app.state.service
    # Uploads that wait for an inspector hold a thread each; all others keep theirs.
    to_thread.current_default_thread_limiter().total_tokens += service.settings.uploads_at_once
    await run_in_threadpool(service.start)
    try:
        yield
    finally:
        app.state.stopping.set()
        await run_in_threadpool(service.stop)


async def _refused(request: Request, error: Exception) -> JSONResponse:
    code = code_of(error)
    return JSONResponse({"detail": str(error), "code": code}, HTTP_STATUSES[code])
