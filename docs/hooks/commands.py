"""Puts the help text of every command in place of `<!-- commands -->`, when the site is built."""

import os
from collections.abc import Iterator
from typing import Any

MARK = "<!-- commands -->"
COLUMNS = "88"


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Write one section per command; called by MkDocs for each page."""
    if MARK not in markdown:
        return markdown
    from typer.main import get_command

    from recap.cli.main import app

    os.environ["COLUMNS"] = COLUMNS  # the width that help is wrapped to
    os.environ["TERMINAL_WIDTH"] = COLUMNS
    sections = list(_sections(get_command(app), "recap", None))
    return markdown.replace(MARK, "\n\n".join(sections))


def _sections(command: Any, name: str, parent: Any) -> Iterator[str]:
    context = command.make_context(name.split()[-1], [], parent=parent, resilient_parsing=True)
    context.max_content_width = int(COLUMNS)
    yield f"## {name}\n\n```text\n{command.get_help(context).strip()}\n```"
    for child, found in getattr(command, "commands", {}).items():
        yield from _sections(found, f"{name} {child}", context)
