"""The documentation is whole: links lead somewhere, pages are listed, commands exist."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from recap.cli.main import app

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
COMMANDS = get_command(app)
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted(DOCS.rglob("*.md"))]
_LINK = re.compile(r"""!?\[[^\]]*\]\(([^)\s]+)\)|<img src="([^"]+)\"""")
_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.DOTALL | re.MULTILINE)
# Where a command line of a page ends: a comment, or another command.
_END = re.compile(r"\s#\s.*$|[|;>].*$|\s&&?.*$")


def name_of(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks(page: Path) -> Iterator[str]:
    for _, language, text in _FENCE.findall(page.read_text(encoding="utf-8")):
        if language in ("", "sh", "bash", "console"):
            yield text


def command_lines(page: Path) -> Iterator[list[str]]:
    for text in blocks(page):
        for line in re.sub(r"\\\n\s*", " ", text).splitlines():
            found = re.search(r"(?:^|[\s/])recap ((?:[a-z]|--help).*)$", _END.sub("", line))
            if found and not re.match(r"\s*(pip|docker build)\s", line):
                yield shlex.split(found[1].replace("[", "").replace("]", ""))


def anchors(page: Path) -> set[str]:
    text = _FENCE.sub("", page.read_text(encoding="utf-8"))
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    kept = (re.sub(r"[^\w\s-]", "", head.lower(), flags=re.ASCII).strip() for head in heads)
    return {re.sub(r"[-\s]+", "-", head) for head in kept}


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_relative_link_leads_to_a_file_and_a_heading(page: Path) -> None:
    broken = []
    for found in _LINK.findall(_FENCE.sub("", page.read_text(encoding="utf-8"))):
        link = "".join(found)
        if re.match(r"[a-z]+:", link):
            continue
        path, _, anchor = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.is_file() or (anchor and anchor not in anchors(target)):
            broken.append(link)
    assert broken == []


def test_every_page_is_in_the_navigation_once() -> None:
    text = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
    listed = re.findall(r"([\w./-]+\.md)$", text, re.MULTILINE)
    pages = [page.relative_to(DOCS).as_posix() for page in DOCS.rglob("*.md")]
    assert sorted(listed) == sorted(pages)


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_command_on_a_page_exists_with_its_options(page: Path) -> None:
    for words in command_lines(page):
        command, rest = find_command(words)
        known = {name for parameter in command.params for name in parameter.opts}
        known |= {"-h", "--help"}
        used = [word.partition("=")[0] for word in rest if re.match(r"--?[a-z]", word)]
        unknown = [option for option in used if option not in known]
        assert unknown == [], f"recap {' '.join(words)}"


def find_command(words: list[str]) -> tuple[Any, list[str]]:
    command: Any = COMMANDS
    rest = list(words)
    while hasattr(command, "commands") and rest and not rest[0].startswith("-"):
        word = rest.pop(0)
        assert word in command.commands, f"recap {' '.join(words)}: no command '{word}'"
        command = command.commands[word]
    return command, rest


def test_commands_are_found_on_the_pages() -> None:
    found = [words for page in PAGES for words in command_lines(page)]
    assert {words[0] for words in found} >= {"fit", "score", "serve", "listen", "bench"}
    assert len(found) > 80


def test_an_unknown_command_is_noticed() -> None:
    with pytest.raises(AssertionError, match="no command 'scroe'"):
        find_command(["scroe", "x"])
