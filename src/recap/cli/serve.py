"""`recap serve`, `recap recover` and `recap listen`: services for browsers, programs, archives."""

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recap._files import read_token
from recap.cli.ending import SIGNALS
from recap.cli.options import Device, RandomWeights
from recap.errors import SettingsError, counted, require

if TYPE_CHECKING:
    from recap.service.pacs.send import Destination


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


def recover_command(
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="The folder that `recap serve --data` names.")
    ],
    adopt: Annotated[
        bool,
        typer.Option(
            "--adopt",
            help="Make jobs and bundles of them again; what holds too little goes to DATA/lost. A "
            "damaged database goes there too, and a new one is made.",
        ),
    ] = False,
    remove: Annotated[
        bool, typer.Option("--remove", help="Delete them, with all uploads and results in them.")
    ] = False,
) -> None:
    """List, adopt or remove folders that a service does not know.

    The service does not start while there are such folders: its database was emptied, replaced, or
    restored from an older copy. Without an option nothing is changed. Scored jobs come back as they
    were; jobs without a result are scored again, as their end is not known.
    """
    if adopt and remove:
        raise SettingsError("Choose one of --adopt and --remove.")
    require("fastapi", "server")
    from recap.service.recovery import adopt as adopt_all
    from recap.service.recovery import open_to_recover, remove_all, strays

    store = open_to_recover(data, replace_damaged=adopt)
    try:
        found = strays(store)
        for stray in found:
            typer.echo(f"{stray.folder.relative_to(store.root)}\t{stray.words}")
        if adopt:
            adopt_all(store, found)
        elif remove:
            remove_all(store, found)
    finally:
        store.close()
    done = "adopted" if adopt else "removed" if remove else "not known to the database"
    typer.echo(f"{counted(len(found), 'folder')} {done}.", err=True)


def listen_command(
    bundle: Annotated[
        Path, typer.Argument(metavar="BUNDLE", help="A detector saved by `recap fit`.")
    ],
    spool: Annotated[Path, typer.Option(help="Folder for what has arrived and is not done.")],
    send_to: Annotated[
        str | None, typer.Option(metavar="AE@HOST:PORT", help="Who gets the results by C-STORE.")
    ] = None,
    store_url: Annotated[
        str | None, typer.Option(metavar="URL", help="Or the DICOMweb archive that gets them.")
    ] = None,
    store_token_file: Annotated[
        Path | None, typer.Option(help="With --store-url: a file with its bearer token.")
    ] = None,
    port: Annotated[int, typer.Option(help="Port to listen on.")] = 11112,
    host: Annotated[str, typer.Option(help="Address to listen on.")] = "127.0.0.1",
    ae_title: Annotated[str, typer.Option(help="Our own application entity title.")] = "RECAP",
    calling: Annotated[
        list[str] | None,
        typer.Option(
            metavar="TITLE", help="Titles that may send; needed beyond this machine. Repeatable."
        ),
    ] = None,
    quiet_seconds: Annotated[
        float, typer.Option(help="A study is complete when nothing came for so long.")
    ] = 5.0,
    device: Device = "auto",
    random_weights: RandomWeights = False,
) -> None:
    """Run a DICOM node: score what arrives, send the results.

    Studies arrive by C-STORE, results are DICOM objects. What has arrived is kept in the spool
    until its results are stored elsewhere: after a crash, the same command goes on. Ends with
    Ctrl-C, SIGTERM or its terminal. Logs name no patient.
    """
    from recap.runtime.choose import load
    from recap.service.pacs.listen import Listener, ListenSettings
    from recap.service.pacs.score_study import study_scorer
    from recap.service.pacs.spool import Spool

    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("recap").setLevel(logging.INFO)
    settings = ListenSettings(ae_title, host, port, quiet_seconds, tuple(calling or ()))
    settings.check()
    destination = _destination(send_to, store_url, store_token_file, ae_title)
    detector = load(bundle, device, random_weights)
    listener = Listener(Spool(spool), study_scorer(detector), destination, settings)
    for number in (signal.SIGINT, *SIGNALS):
        if signal.getsignal(number) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(number, lambda *_: listener.stop())
    listener.start()
    listener.run()


def _destination(
    send_to: str | None, store_url: str | None, token_file: Path | None, ae_title: str
) -> "Destination":
    from recap.service.pacs.send import DicomPeer, WebArchive, parse_address

    if (send_to is None) == (store_url is None):
        raise SettingsError("Say where results go: --send-to AE@HOST:PORT or --store-url URL.")
    if send_to is not None:
        if token_file is not None:
            raise SettingsError(
                f"--store-token-file {token_file} is for the archive of --store-url; C-STORE "
                "(--send-to) has no token. Leave it out."
            )
        return DicomPeer(parse_address(send_to), ae_title)
    token = read_token(token_file) if token_file is not None else None
    return WebArchive(str(store_url), token)
