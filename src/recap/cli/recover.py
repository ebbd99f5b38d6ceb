"""`recap recover`: a service's data folder whose database was lost, or is older than it."""

from pathlib import Path
from typing import Annotated

import typer


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
    from recap.errors import SettingsError, require

    if adopt and remove:
        raise SettingsError("Choose one of --adopt and --remove.")
    require("fastapi", "server")
    from recap.errors import counted
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
