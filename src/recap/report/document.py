"""What all HTML pages have in common: one file that loads nothing, pictures inside."""

import base64
from collections.abc import Iterable
from html import escape

# Even if escaping failed somewhere, the browser would load and run nothing.
POLICY = "default-src 'none'; img-src data:; style-src 'unsafe-inline'"


def document(title: str, style: str, body: str, policy: str = POLICY) -> str:
    """A whole page; `policy` is what the browser may load and run."""
    return (
        "<!DOCTYPE html>\n<html lang='en'>\n<head>\n<meta charset='utf-8'>\n"
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        "<meta name='viewport' content='width=device-width, initial-scale=1'>\n"
        f"<title>{escape(title)}</title>\n<style>\n{style}</style>\n</head>\n"
        f"<body>\n{body}\n</body>\n</html>\n"
    )


def definitions(kind: str, pairs: Iterable[tuple[str, str]]) -> str:
    """Names and values as a list of a CSS class."""
    cells = "".join(f"<div><dt>{escape(k)}</dt><dd>{escape(str(v))}</dd></div>" for k, v in pairs)
    return f"<dl class='{kind}'>{cells}</dl>"


def png_source(png: bytes) -> str:
    """A picture as an address that holds it."""
    return f"data:image/png;base64,{base64.b64encode(png).decode('ascii')}"
