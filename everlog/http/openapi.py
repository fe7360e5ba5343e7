"""The OpenAPI document, and a page that shows it. The page is ours: nothing is loaded from elsewhere."""

from __future__ import annotations

import json
from html import escape
from typing import Any

from litestar import Request
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme, Tag

from everlog.version import __version__

_METHODS = ("get", "head", "put", "post", "patch", "delete")
_STYLE = """
:root { color-scheme: light dark; --line: light-dark(#ddd, #444); --soft: light-dark(#f5f5f5, #222) }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem }
code, pre { font: .9rem/1.4 ui-monospace, monospace } pre { background: var(--soft); padding: .75rem; overflow: auto }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .4rem 0; padding: .4rem .75rem }
summary { cursor: pointer } summary b { display: inline-block; min-width: 4.5rem }
table { border-collapse: collapse } td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top }
"""


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Everlog",
        version=__version__,
        description=(
            "Journals, views by tag, projections, queues and documents of one event log. A key is one percent-encoded "
            "segment of a path. Every write answers with `Journal-Position`; every read takes it as `after`."
        ),
        path="/openapi",
        render_plugins=[PagePlugin(), JsonRenderPlugin()],
        components=Components(
            security_schemes={"token": SecurityScheme(type="http", scheme="bearer", description="everlog token new")}
        ),
        security=[{"token": []}],
        tags=[
            Tag("journals", "Events by topic and id."),
            Tag("tags", "Events of all journals by tag, in one order."),
            Tag("projections", "Views that handlers make: how far they are, and commands for them."),
            Tag("operations", "How the server is."),
        ],
        use_handler_docstrings=True,
    )


class PagePlugin(OpenAPIRenderPlugin):
    """The document as one page without scripts."""

    def __init__(self) -> None:
        super().__init__(path="/", favicon="", style="")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return openapi_page(openapi_schema).encode()


def openapi_page(document: dict[str, Any]) -> str:
    """The page. All that it shows is escaped."""
    parts: dict[str, list[str]] = {}
    for path, item in sorted(document.get("paths", {}).items()):
        for method in _METHODS:
            operation = item.get(method)
            if operation is not None:
                name = (operation.get("tags") or ["documents"])[0]
                parts.setdefault(name, []).append(_operation(path, method, operation, document))
    info = document["info"]
    body = "".join(f"<h2>{escape(name)}</h2>{''.join(shown)}" for name, shown in sorted(parts.items()))
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>{escape(info['title'])} API</title><style>{_STYLE}</style>"
        f"<main><h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{escape(info.get('description', ''))}</p>"
        f'<p>The same for programs: <a href="/openapi/openapi.json">openapi.json</a></p>{body}</main></html>'
    )


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    text = operation.get("description") or operation.get("summary") or ""
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code><td>{escape(one['in'])}<td>{escape(one.get('description') or '')}"
        for one in operation.get("parameters", [])
    )
    table = f"<table><tr><th>parameter<th>in<th>meaning{rows}</table>" if rows else ""
    answers = "".join(
        f"<li><code>{escape(str(status))}</code> {escape(one.get('description', ''))}{_examples(one)}"
        for status, one in sorted(operation.get("responses", {}).items())
    )
    body = operation.get("requestBody")
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code></summary><p>{escape(text)}</p>{table}"
        f"{'<h4>Body</h4>' + _examples(body) if body else ''}<h4>Answers</h4><ul>{answers}</ul></details>"
    )


def _examples(owner: dict[str, Any]) -> str:
    shown = []
    for media, content in owner.get("content", {}).items():
        for example in content.get("examples", {}).values():
            value = example.get("value")
            text = value if isinstance(value, str) else json.dumps(value, indent=2, ensure_ascii=False)
            shown.append(f"<p><small>{escape(media)}</small></p><pre>{escape(text)}</pre>")
    return "".join(shown)
