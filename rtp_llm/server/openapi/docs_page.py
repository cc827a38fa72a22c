# SPDX-License-Identifier: Apache-2.0
"""GET /docs: /openapi.json as a page, without scripts or external resources."""

from __future__ import annotations

from html import escape
from typing import Any

Schema = dict[str, Any]

# Allow only the page's own style.
HEADERS = {
    "Content-Security-Policy": "default-src 'none'; style-src 'unsafe-inline'; "
    "frame-ancestors 'none'; base-uri 'none'; form-action 'none'",
    "X-Content-Type-Options": "nosniff",
}
_STYLE = """
body { font: 15px/1.5 system-ui, sans-serif; max-width: 60em; margin: 2em auto; padding: 0 1em; }
code { font-family: ui-monospace, monospace; font-size: 0.93em; }
summary { cursor: pointer; padding: 0.3em 0; }
table { border-collapse: collapse; margin: 0.5em 0 1em; }
td, th { border: 1px solid #8885; padding: 0.2em 0.6em; text-align: left; vertical-align: top; }
.method { display: inline-block; min-width: 4em; font-weight: bold; }
@media (prefers-color-scheme: dark) { body { background: #111; color: #ddd; } a { color: #8bf; } }
"""


def render(schema: Schema) -> str:
    """Render an OpenAPI document as an HTML page."""
    title = f"{schema['info']['title']} {schema['info']['version']}"
    parts = [
        "<!doctype html><html lang='en'><head><meta charset='utf-8'>",
        "<meta name='viewport' content='width=device-width'>",
        f"<title>{escape(title)}</title><style>{_STYLE}</style></head><body>",
        f"<h1>{escape(title)}</h1><p>The same as <a href='openapi.json'>openapi.json</a>.</p>",
    ]
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            parts.append(_operation(method, path, operation))
    parts.append("<h2>Types</h2>")
    for name, kind in sorted(schema["components"]["schemas"].items()):
        parts.append(f"<h3 id='{escape(name)}'>{escape(name)}</h3>{_type(kind)}")
    return "\n".join([*parts, "</body></html>"])


def _operation(method: str, path: str, operation: Schema) -> str:
    head = f"<span class='method'>{method.upper()}</span> <code>{escape(path)}</code>"
    words = escape(str(operation.get("description", "")).partition("\n")[0])
    rows = []
    if body := operation.get("requestBody"):
        rows.append(("body", _contents(body["content"])))
    for status, answer in operation["responses"].items():
        rows.append((status, f"{escape(answer['description'])} {_contents(answer['content'])}"))
    table = "".join(f"<tr><th>{name}</th><td>{text}</td></tr>" for name, text in rows)
    return f"<details><summary>{head} {words}</summary><table>{table}</table></details>"


def _contents(content: Schema) -> str:
    shown = (f"<code>{escape(kind)}</code>: {_words(c['schema'])}" for kind, c in content.items())
    return "; ".join(shown)


def _type(kind: Schema) -> str:
    described = f"<p>{escape(kind.get('description', ''))}</p>"
    if "properties" not in kind:
        return described + "".join(_type(each) for each in kind.get("anyOf", ()))
    required = set(kind.get("required", ()))
    rows = [
        f"<tr><td><code>{escape(name)}</code>{'' if name in required else ' (optional)'}</td>"
        f"<td>{_words(each)}</td><td>{escape(each.get('description', ''))}</td></tr>"
        for name, each in kind["properties"].items()
    ]
    return f"{described}<table>{''.join(rows)}</table>"


def _words(schema: Schema) -> str:
    """A type in words, including its range."""
    if reference := schema.get("$ref"):
        name = escape(reference.rpartition("/")[2])
        return f"<a href='#{name}'>{name}</a>"
    if kinds := schema.get("anyOf"):
        return " or ".join(_words(each) for each in kinds)
    if "contentSchema" in schema:
        return f"{_words(schema['contentSchema'])} as JSON"
    if "enum" in schema or "const" in schema:
        values = schema.get("enum", [schema.get("const")])
        return " or ".join(f"<code>{escape(repr(value))}</code>" for value in values)
    if "data" in (properties := schema.get("properties", {})):
        return f"events of {_words(properties['data'])}"
    if schema.get("type") == "array":
        return f"list of {_words(schema.get('items', {}))}"
    names = {"minimum": "at least", "maximum": "at most", "exclusiveMinimum": "more than"}
    limits = ", ".join(f"{names[key]} {schema[key]}" for key in names if key in schema)
    return escape(str(schema.get("type", "any value"))) + (f" ({limits})" if limits else "")
