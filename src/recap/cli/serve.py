"""`recap serve`: a service for browsers and programs."""

from pathlib import Path
from typing import Annotated

import typer

from recap.cli.options import Device, RandomWeights


def serve_command(
    bundles: Annotated[
        list[Path], typer.Argument(metavar="BUNDLE", help="Detectors saved by `recap fit`.")
    ],
    data: Annotated[
        Path, typer.Option(help="Folder for jobs, uploads, results and fitted detectors.")
    ] = Path("recap-data"),
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine it needs a token.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="0 chooses a free one.")] = 8000,
    token_file: Annotated[
        Path | None, typer.Option(help="A file with the token that clients must send.")
    ] = None,
    public_host: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME", help="A name that a proxy on this machine serves it under. Repeatable."
        ),
    ] = None,
    max_upload_mb: Annotated[int, typer.Option(min=1, help="Of one request.")] = 512,
    max_megapixels: Annotated[
        int, typer.Option(min=1, help="Of one request, all images together.")
    ] = 400,
    queue: Annotated[int, typer.Option(min=1, help="Jobs that may wait; then 429.")] = 200,
    workers: Annotated[int, typer.Option(min=1, max=64, help="Jobs scored at a time.")] = 1,
    keep_days: Annotated[
        float | None, typer.Option(help="Delete finished jobs after so many days; else never.")
    ] = None,
    deidentify: Annotated[
        bool, typer.Option("--deidentify", help="Store no identity and no client's file name.")
    ] = False,
    device: Device = "auto",
    random_weights: RandomWeights = False,
) -> None:
    """Serve detectors: a viewer in the browser, and an API.

    The viewer is at /, the API at /api/docs, metrics are at /metrics. Jobs survive a crash: what
    was accepted is finished after the next start with the same --data.
    """
    from recap.errors import require

    for module in ("fastapi", "uvicorn", "python_multipart"):
        require(module, "server")
    from recap.config import validated
    from recap.service.app import run_server
    from recap.service.settings import ServerSettings, check_exposure, read_own_token

    given = {
        "bundles": tuple(bundles),
        "data": data,
        "host": host,
        "port": port,
        "token": None if token_file is None else read_own_token(token_file),
        "public_hosts": tuple(public_host or ()),
        "max_upload_mb": max_upload_mb,
        "max_megapixels": max_megapixels,
        "queue": queue,
        "workers": workers,
        "keep_days": keep_days,
        "deidentify": deidentify,
        "device": device,
        "random_weights": random_weights,
    }
    settings = validated(ServerSettings, given)
    check_exposure(settings)
    run_server(settings)
