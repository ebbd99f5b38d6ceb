"""Everything that decides how the service behaves, checked before it opens a port."""

import ipaddress
import re
from pathlib import Path
from typing import Annotated

from pydantic import Field

from recap._files import read_token
from recap.config import Section
from recap.errors import SettingsError
from recap.scoring.bundle import read_card

MEGABYTE = 2**20
SHORTEST_TOKEN = 16
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")
"""The form of a bundle's name in addresses."""


class ServerSettings(Section):
    """All settings of the service; `recap serve` has an option for most of them."""

    bundles: tuple[Path, ...]
    data: Path
    host: str = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65535)] = 8000
    public_hosts: tuple[str, ...] = ()
    """Names under which a proxy on this machine makes the service known to others."""
    token: str | None = None
    max_upload_mb: Annotated[int, Field(ge=1)] = 512
    """Of one request, all files together, as sent."""
    max_unpacked_mb: Annotated[int, Field(ge=1)] = 4096
    """Of one request, after its archives were unpacked."""
    max_files: Annotated[int, Field(ge=1)] = 5000
    max_megapixels: Annotated[int, Field(ge=1)] = 400
    """Of one request, all images together (slides: their tiles)."""
    queue: Annotated[int, Field(ge=1)] = 200
    """Jobs that wait; one more is answered with 429."""
    uploads_at_once: Annotated[int, Field(ge=1)] = 32
    posts_per_minute: Annotated[int, Field(ge=1)] = 1200
    """Of one client; half a minute's worth may come at once."""
    workers: Annotated[int, Field(ge=1, le=64)] = 1
    batch_size: Annotated[int, Field(ge=1)] = 8
    """Small images of several requests that a GPU scores together."""
    inspectors: Annotated[int, Field(ge=1, le=64)] = 2
    inspect_seconds: Annotated[float, Field(gt=0)] = 120.0
    read_seconds: Annotated[float, Field(gt=0)] = 30.0
    """The longest silence of a client in the middle of an upload."""
    keep_days: Annotated[float, Field(gt=0)] | None = None
    """Finished jobs and their files are deleted after this time; none keeps them."""
    device: str = "auto"
    random_weights: bool = False
    deidentify: bool = False

    @property
    def max_upload_bytes(self) -> int:
        """The longest body that is read."""
        return self.max_upload_mb * MEGABYTE

    @property
    def max_pixels(self) -> int:
        """The most that is decoded for one request."""
        return self.max_megapixels * 10**6

    @property
    def is_loopback(self) -> bool:
        """True where only this machine can connect."""
        return is_loopback(self.host)


def is_loopback(host: str) -> bool:
    """Tell if an address or name means this machine alone; unknown names do not."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_exposure(settings: ServerSettings) -> None:
    """Refuse to serve others without a token, and tokens that can be guessed."""
    if settings.token is None and (settings.public_hosts or not settings.is_loopback):
        where = next(iter(settings.public_hosts), settings.host)
        raise SettingsError(
            f"{where} is open to other machines, which needs a token. Write one to a file (for "
            "example with `openssl rand -hex 32`) and pass --token-file FILE."
        )


def read_own_token(path: Path) -> str:
    """Read the token that clients must send: one that cannot be guessed."""
    return read_token(path, SHORTEST_TOKEN, "Make one with `openssl rand -hex 32`.")


def served_names(bundles: tuple[Path, ...]) -> dict[str, Path]:
    """Name bundles as addresses do: by their folders, without `.recap`."""
    if not bundles:
        raise SettingsError("There is nothing to serve. Name at least one bundle.")
    named: dict[str, Path] = {}
    for folder in bundles:
        read_card(folder)
        name = folder.resolve().name.removesuffix(".recap")
        if not NAME.fullmatch(name):
            raise SettingsError(
                f"{folder}: '{name}' cannot stand in an address. Rename the folder with letters, "
                "digits, '_', '.' and '-'.",
                path=folder,
            )
        if name in named:
            raise SettingsError(f"{named[name]} and {folder} are both called '{name}'. Rename one.")
        named[name] = folder
    return named
