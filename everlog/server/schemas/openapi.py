"""The OpenAPI document, and a page that shows it. The page is ours: nothing is loaded from elsewhere."""

from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

import msgspec
from litestar import Litestar, Request
from litestar.openapi import OpenAPIConfig
from litestar.openapi.plugins import JsonRenderPlugin, OpenAPIRenderPlugin
from litestar.openapi.spec import Components, SecurityScheme, Tag
from litestar.routes import HTTPRoute

from everlog.server.schemas.document_schemas import with_schemas
from everlog.version import __version__

JSON = "application/json"
_REF = "#/components/schemas/{name}"
_METHODS = ("get", "head", "put", "post", "patch", "delete")
_STYLE = """
:root { color-scheme: light dark; --line: light-dark(#ddd, #444); --soft: light-dark(#f5f5f5, #222) }
body { font: 1rem/1.5 system-ui, sans-serif; max-width: 60rem; margin: 0 auto; padding: 1rem }
code, pre { font: .9rem/1.4 ui-monospace, monospace } pre { background: var(--soft); padding: .75rem; overflow: auto }
details { border: 1px solid var(--line); border-radius: .4rem; margin: .4rem 0; padding: .4rem .75rem }
summary { cursor: pointer }
summary small { margin-left: .75rem; opacity: .75 }
summary b { display: inline-block; min-width: 4.5rem }
table { border-collapse: collapse } td, th { text-align: left; padding: .2rem .8rem .2rem 0; vertical-align: top }
"""


class SchemaShape(NamedTuple):
    """What a body is: a struct of msgspec, or None for free text; and one that could be sent. Headers come with it."""

    kind: Any
    example: Any
    media: str = JSON
    required: bool = True
    headers: tuple[tuple[str, str], ...] = ()


def shown(
    *,
    body: SchemaShape | None = None,
    answers: Mapping[int, SchemaShape | Sequence[SchemaShape]] | None = None,
    **opt: Any,
) -> dict[str, Any]:
    """The `opt` of a route whose handler reads and writes bodies by itself: what the document says about them."""
    return {**opt, "body": body, "answers": answers or {}}


def complete_document(app: Litestar, document: dict[str, Any]) -> dict[str, Any]:
    """The whole document, made anew when schemas of documents have changed."""
    schemas = app.state.documents.known_schemas
    versions = tuple(one.version for one in schemas)
    known: tuple[tuple[str, ...], dict[str, Any]] | None = app.state.get("openapi_with_schemas")
    if known is None or known[0] != versions:
        known = app.state["openapi_with_schemas"] = (
            versions,
            with_schemas(_described_document(app, document), schemas),
        )
    return known[1]


def _described_document(app: Litestar, document: dict[str, Any]) -> dict[str, Any]:
    """The framework's document, with the bodies that only the routes know."""
    found: dict[str, Any] | None = app.state.get("openapi_document")
    if found is not None:
        return found
    found = copy.deepcopy(document)
    described = list(_described(app))
    kinds = {shape.kind for _, _, opt in described for shape in _shapes(opt) if shape.kind is not None}
    _, components = msgspec.json.schema_components(sorted(kinds, key=lambda kind: kind.__name__), ref_template=_REF)
    found.setdefault("components", {}).setdefault("schemas", {}).update(components)
    for path, method, opt in described:
        operation = found["paths"].get(path, {}).get(method)
        if operation is None:
            continue
        if opt["body"] is not None:
            operation["requestBody"] = {"required": opt["body"].required, "content": _content([opt["body"]])}
        operation["responses"].get("204", {}).pop("content", None)
        for status, shapes in opt["answers"].items():
            answer = operation["responses"].setdefault(str(status), {"description": ""})
            several = [shapes] if isinstance(shapes, SchemaShape) else shapes
            answer["content"] = _content(several)
            headers = dict(one for shape in several for one in shape.headers)
            if headers:
                answer["headers"] = {
                    name: {"schema": {"type": "string"}, "description": text} for name, text in headers.items()
                }
    app.state["openapi_document"] = found
    return found


def _described(app: Litestar) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for route in app.routes:
        if isinstance(route, HTTPRoute):
            for handler in route.route_handlers:
                if "answers" in handler.opt:
                    yield from ((route.path_format, method.lower(), handler.opt) for method in handler.http_methods)


def _shapes(opt: dict[str, Any]) -> Iterator[SchemaShape]:
    if opt["body"] is not None:
        yield opt["body"]
    for shapes in opt["answers"].values():
        yield from [shapes] if isinstance(shapes, SchemaShape) else shapes


def _content(shapes: Sequence[SchemaShape]) -> dict[str, Any]:
    return {
        shape.media: {
            "schema": {"type": "string"} if shape.kind is None else {"$ref": _REF.format(name=shape.kind.__name__)},
            "examples": {"example": {"value": shape.example}},
        }
        for shape in shapes
    }


def openapi_config() -> OpenAPIConfig:
    return OpenAPIConfig(
        title="Everlog",
        version=__version__,
        description=(
            "Journals, views by tag, projections, queues and documents of one event log. A key is one percent-encoded "
            "segment of a path. A write whose record is in the log when it is answered says where, in "
            "`Journal-Position`; reads of what comes from the log take that as `after`."
        ),
        path="/openapi",
        render_plugins=[PagePlugin(), DocumentPlugin()],
        components=Components(
            security_schemes={"token": SecurityScheme(type="http", scheme="bearer", description="everlog token new")}
        ),
        security=[{"token": []}],
        tags=[
            Tag("journals", "Events by topic and id."),
            Tag("tags", "Events of all journals by tag, in one order."),
            Tag("projections", "Views that handlers make: how far they are, and commands for them."),
            Tag(
                "queues",
                "Jobs. They are not in the log: an answer is durable, and all that is asked later knows of it.",
            ),
            Tag("documents", "JSON documents and collections, their indexes, views and changes."),
            Tag("operations", "How the server is."),
        ],
        use_handler_docstrings=True,
    )


class PagePlugin(OpenAPIRenderPlugin):
    """The document as one page without scripts."""

    def __init__(self) -> None:
        super().__init__(path="/", favicon="", style="")

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return openapi_page(complete_document(request.app, openapi_schema)).encode()


class DocumentPlugin(JsonRenderPlugin):
    """The document for programs."""

    def render(self, request: Request[Any, Any, Any], openapi_schema: dict[str, Any]) -> bytes:
        return msgspec.json.encode(complete_document(request.app, openapi_schema), enc_hook=str)


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
        f"<main><h1>{escape(info['title'])} {escape(info['version'])}</h1><p>{_text(info.get('description', ''))}</p>"
        f'<p>The same for programs: <a href="/openapi/openapi.json">openapi.json</a></p>{body}</main></html>'
    )


def _text(text: str) -> str:
    """Plain text with `code` in it."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _operation(path: str, method: str, operation: dict[str, Any], document: dict[str, Any]) -> str:
    text = operation.get("description") or operation.get("summary") or ""
    rows = "".join(
        f"<tr><td><code>{escape(one['name'])}</code><td>{escape(one['in'])}<td>{_text(one.get('description') or '')}"
        for one in operation.get("parameters", [])
    )
    table = f"<table><tr><th>parameter<th>in<th>meaning{rows}</table>" if rows else ""
    answers = "".join(
        f"<li><code>{escape(str(status))}</code> {escape(one.get('description', ''))}{_examples(one)}"
        for status, one in sorted(operation.get("responses", {}).items())
    )
    body = operation.get("requestBody")
    first = _text(text.partition(". ")[0])
    return (
        f"<details><summary><b>{method.upper()}</b> <code>{escape(path)}</code><small>{first}</small></summary>"
        f"<p>{_text(text)}</p>{table}"
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
