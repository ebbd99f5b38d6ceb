"""Turns equations into MathML when the site is built: no script, no font, no other host.

Written as GitHub reads them: a fenced block named `math`, and $`x`$ within a line.
"""

import re
from typing import Any

from latex2mathml.converter import convert

_BLOCK = re.compile(r"^```math\n(.*?)^```$", re.DOTALL | re.MULTILINE)
_INLINE = re.compile(r"\$`([^`\n]+)`\$")
_rendered: list[str] = []


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Set equations aside, for Markdown would take their signs for its own."""
    markdown = _BLOCK.sub(lambda found: _set_aside(found[1], "block"), markdown)
    return _INLINE.sub(lambda found: _set_aside(found[1], "inline"), markdown)


def on_page_content(html: str, **_: Any) -> str:
    """Put them back."""
    return re.sub(r"@@math-(\d+)@@", lambda found: _rendered[int(found[1])], html)


def _set_aside(latex: str, display: str) -> str:
    _rendered.append(convert(latex.strip(), display=display))
    return f"@@math-{len(_rendered) - 1}@@"
