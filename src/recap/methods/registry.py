"""Which methods there are, and what each can do."""

from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import Literal

from recap.errors import SettingsError

Ability = Literal["yes", "extension", "no"]


@dataclass(frozen=True)
class Peer:
    """One method. Its module holds Options, OFFICIAL, build and fit; see `fitting`."""

    name: str
    title: str
    zero_shot: Ability
    """`extension`: not in its publication, or in another form; its page in docs/peers says what is
    done instead."""
    few_shot: Ability = "yes"
    maps: Literal["yes", "extension"] = "yes"
    """Whether its publication has maps; all have them here."""
    needs_abnormal: bool = False
    """Whether few-shot fitting is refused without abnormal images."""
    normal_only: bool = False
    """Whether abnormal images are of no use to it."""
    uses_text: bool = False
    """Whether fitting needs an encoder with a text tower."""
    backbone: str = ""
    """What it trains or looks with instead of a transformer, where it brings its own."""
    names_target: bool = False
    """Whether its text names the domain that is scored, where it is fitted on others."""

    def extends(self, zero_shot: bool) -> bool:
        """Whether it is fitted otherwise than it was published."""
        return (self.zero_shot if zero_shot else self.few_shot) == "extension"

    @property
    def module(self) -> ModuleType:
        """Loaded when it is used: methods are tensors through and through."""
        return import_module(f"recap.methods.{self.name}")


_ALL = (
    Peer("visualad", "VisualAD", zero_shot="yes", few_shot="extension", needs_abnormal=True),
    Peer("uniadet", "UniADet", zero_shot="yes", few_shot="extension", needs_abnormal=True),
    Peer("patchcore", "PatchCore", zero_shot="no", normal_only=True),
    Peer("anomalydino", "AnomalyDINO", zero_shot="no", normal_only=True),
    Peer(
        "april_gan",
        "APRIL-GAN",
        zero_shot="yes",
        few_shot="extension",
        uses_text=True,
        names_target=True,
    ),
    Peer("mediclip", "MediCLIP", zero_shot="extension", normal_only=True, uses_text=True),
    Peer("mvfa", "MVFA", zero_shot="yes", needs_abnormal=True, uses_text=True, names_target=True),
    Peer("madclip", "MadCLIP", zero_shot="extension", needs_abnormal=True, uses_text=True),
    Peer(
        "dra",
        "DRA",
        zero_shot="extension",
        maps="extension",
        needs_abnormal=True,
        backbone="microsoft/resnet-18",
    ),
)
PEERS: dict[str, Peer] = {peer.name: peer for peer in _ALL}


def find_peer(name: str) -> Peer:
    """The method of this name."""
    if name not in PEERS:
        raise SettingsError(f"No method is called '{name}'. Known: {', '.join(PEERS)}.")
    return PEERS[name]
