"""ReCAP: one equation, one function; the equations are read from top to bottom in this order:
adapters, prototypes, memory, sources, head, losses."""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recap.methods.recap.regimes import build, choose_variant
    from recap.methods.recap.teach import fit

__all__ = ["build", "choose_variant", "fit"]


def __getattr__(name: str) -> Any:
    """Import what a method's module holds on first use: settings alone need no torch."""
    if name == "fit":
        from recap.methods.recap.teach import fit

        return fit
    if name in ("build", "choose_variant"):
        from recap.methods.recap import regimes

        return getattr(regimes, name)
    raise AttributeError(f"module 'recap.methods.recap' has no attribute '{name}'")
