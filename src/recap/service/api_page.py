"""A page that describes the API, made here: nothing is fetched from anywhere."""

from html import escape
from typing import Any

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
h2 { margin-top: 2.5rem; border-bottom: 1px solid #8886; }
section { margin: 1.5rem 0; }
code { font-family: ui-monospace, monospace; }
h3 code { font-size: 1rem; }
.method { display: inline-block; min-width: 4.5rem; font-weight: 700; }
table { border-collapse: collapse; margin: .5rem 0; }
th, td { text-align: left; padding: .1rem 1rem .1rem 0; vertical-align: top; font-weight: 400; }
"""
_METHODS = ("get", "post", "delete")


def api_page(description: dict[str, Any]) -> str:
    """The page, from the API's own description."""
    groups: dict[str, list[str]] = {}
    for address, methods in description["paths"].items():
        for method in (m for m in _METHODS if m in methods):
            group = methods[method].get("tags", ["other"])[0]
            groups.setdefault(group, []).append(_operation(method, address, methods[method]))
    info = description["info"]
    body = "".join(f"<h2>{escape(name)}</h2>{''.join(parts)}" for name, parts in groups.items())
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        f"<title>{escape(info['title'])} API</title>"
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<link rel="stylesheet" href="docs.css"></head><body>'
        f"<h1>{escape(info['title'])} {escape(info['version'])}</h1>"
        f"<p>{escape(info.get('description', ''))}</p>"
        '<p>As JSON: <a href="openapi.json">openapi.json</a></p>'
        f"{body}</body></html>"
    )


def _operation(method: str, address: str, operation: dict[str, Any]) -> str:
    rows = [_parameter(parameter) for parameter in operation.get("parameters", [])]
    rows += _fields(operation.get("requestBody"))
    table = f"<table>{''.join(rows)}</table>" if rows else ""
    answers = "".join(
        f"<tr><td><code>{escape(status)}</code></td><td>{escape(answer['description'])}</td></tr>"
        for status, answer in operation["responses"].items()
    )
    return (
        f'<section><h3><code><span class="method">{method.upper()}</span>'
        f"{escape(address)}</code></h3><p>{escape(operation.get('description', ''))}</p>"
        f"{table}<details><summary>Answers</summary><table>{answers}</table></details></section>"
    )


def _parameter(parameter: dict[str, Any]) -> str:
    kind = parameter.get("schema", {}).get("type", "")
    return _row(parameter["name"], f"{parameter['in']} {kind}", parameter.get("required", False))


def _fields(body: dict[str, Any] | None) -> list[str]:
    rows = []
    for kind, content in (body or {}).get("content", {}).items():
        schema = content["schema"]
        for name, field in schema.get("properties", {}).items():
            what = "files" if field["type"] == "array" else field.get("description", field["type"])
            needed = name in schema.get("required", [])
            rows.append(_row(name, f"{what} ({kind})", needed))
    return rows


def _row(name: str, what: str, required: bool) -> str:
    need = "required" if required else ""
    cells = (f"<code>{escape(name)}</code>", escape(what), need)
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"
