"""`recap listen`: a node that scores the studies an archive sends to it."""

import logging
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from recap._files import read_token
from recap.cli.ending import SIGNALS
from recap.cli.options import Device, RandomWeights
from recap.errors import SettingsError

if TYPE_CHECKING:
    from recap.service.pacs.send import Destination


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
