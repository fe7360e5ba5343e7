"""Templates, and how values are written for people. Everything is escaped by Jinja; nothing here marks text as safe
but the two filters that build an element around escaped text."""

from __future__ import annotations

import base64
import hashlib
import shlex
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

import msgspec
from jinja2 import Environment, PackageLoader, StrictUndefined, pass_context
from jinja2.runtime import Context as TemplateContext
from markupsafe import Markup, escape

from everlog.console.actions import outcome_text
from everlog.console.charts import make_bars, make_chart
from everlog.console.queue_plots import make_queue_plots
from everlog.core.phrases import count, duration
from everlog.version import __version__

MAX_SHOWN = 4000
NOTHING = "\N{EN DASH}"
_encode = msgspec.json.Encoder(enc_hook=str, decimal_format="number").encode
STATIC = {"console.css": "text/css", "console.js": "text/javascript", "icon.svg": "image/svg+xml"}
NAV = (
    ("flow", "Flow"),
    ("journal", "Journal"),
    ("tags", "Tags"),
    ("projections", "Projections"),
    ("queues", "Queues"),
    ("documents", "Documents"),
    ("pipeline", "Pipeline"),
    ("operations", "Operations"),
)
# What a page may load: only what comes from this server, and no script or style inside a page.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    # Not "no-referrer": browsers would then hide from where a form comes.
    "Referrer-Policy": "same-origin",
    "Cache-Control": "no-store",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Vary": "Accept, Cookie",
}


def url(page: str, suffix: str = "", /, **state: Any) -> str:
    """The address of a page with its state; what is None or empty is left out.

    >>> url("queues", name="mails", text="")
    '/console/queues?name=mails'
    """
    path = ("/index" if suffix else "/") if page == "flow" else f"/console/{page}"
    query = urlencode({name: value for name, value in state.items() if value not in (None, "")})
    return path + suffix + ("?" + query if query else "")


def exact(ms: int) -> str:
    """A time in UTC, to the millisecond."""
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%S.") + f"{ms % 1000:03} UTC"


def clock(ms: int) -> str:
    """The time of a day in UTC.

    >>> clock(0)
    '00:00:00 UTC'
    """
    return datetime.fromtimestamp(ms / 1000, UTC).strftime("%H:%M:%S UTC")


def relative(ms: int, now_ms: int) -> str:
    """A time as seen from now.

    >>> relative(0, 90_000), relative(90_000, 0), relative(0, 500)
    ('90 s ago', 'in 90 s', 'just now')
    """
    seconds = (now_ms - ms) / 1000
    if abs(seconds) < 1:
        return "just now"
    text = duration(round(abs(seconds))).replace(".0 ", " ")
    return f"{text} ago" if seconds > 0 else f"in {text}"


@pass_context
def ago(context: TemplateContext, ms: int | None) -> Markup | str:
    """A time: relative, with the exact one on hover. In a fragment the script fills in the relative one."""
    if ms is None:
        return NOTHING
    moment = exact(ms)
    text = moment if context.get("fragment") else relative(ms, context["now_ms"])
    iso = datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds")
    return Markup('<time datetime="{}" title="{}">{}</time>').format(iso, moment, text)


def number(value: float | None) -> str:
    """A whole number with its thousands apart."""
    return NOTHING if value is None else f"{value:,.0f}"


def rate_text(value: float | None) -> str:
    """A rate: small ones with a decimal. Counts have none."""
    if value is None:
        return NOTHING
    small = isinstance(value, float) and 0 < value < 10 and value != round(value)
    return f"{value:,.1f}" if small else f"{value:,.0f}"


def seconds_text(value: float | None) -> str:
    return NOTHING if value is None else "0 s" if value == 0 else duration(value)


def shown(value: Any) -> str:
    """A payload for people: JSON over several lines, bytes as base64, not more than a screen full."""
    if value is None:
        return ""
    if isinstance(value, bytes):
        text = "base64: " + base64.b64encode(value[:MAX_SHOWN]).decode()
        return text if len(value) <= MAX_SHOWN else f"{text} … ({len(value):,} bytes)"
    if not isinstance(value, str):
        value = msgspec.json.format(encode(value), indent=2).decode()
    return value if len(value) <= MAX_SHOWN else f"{value[:MAX_SHOWN]} … ({len(value):,} characters)"


def brief(value: Any) -> str:
    """A payload on one line."""
    text = value if isinstance(value, str) else "" if value is None else encode(value).decode()
    text = " ".join(text[:600].split())
    return text if len(text) <= 160 else text[:159] + "…"


def remedy(text: str) -> Markup:
    """Text in which `words` between back-ticks are commands."""
    parts = text.split("`")
    marked = [escape(part) if at % 2 == 0 else Markup("<code>{}</code>").format(part) for at, part in enumerate(parts)]
    return Markup("").join(marked)


def encode(value: Any) -> bytes:
    """JSON of anything that a page shows; bytes become base64, what JSON does not know becomes text."""
    return _encode(value)


@lru_cache(maxsize=1)
def environment() -> Environment:
    """The templates; an undefined name is an error, never an empty place."""
    made = Environment(
        loader=PackageLoader("everlog.console"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters.update(
        ago=ago,
        number=number,
        rate=rate_text,
        seconds=seconds_text,
        shown=shown,
        brief=brief,
        remedy=remedy,
        chart=make_chart,
        bars=make_bars,
        shell=shlex.quote,
        outcome=outcome_text,
        exact=exact,
        clock=clock,
        queue_plots=make_queue_plots,
    )
    made.globals.update(url=url, count=count, asset=asset, nav=NAV, version=__version__)
    return made


def render(template: str, /, **values: Any) -> str:
    return environment().get_template(template).render(**values)


@lru_cache(maxsize=len(STATIC))
def static_file(name: str) -> bytes:
    """A file of the package; only those that are listed exist."""
    return (files("everlog.console") / "static" / name).read_bytes()


@lru_cache(maxsize=len(STATIC))
def asset(name: str) -> str:
    """The address of such a file; it changes with the file, so that browsers may keep it."""
    return f"/console/static/{name}?v={hashlib.sha256(static_file(name)).hexdigest()[:12]}"


def changed(given: Mapping[str, str], **changes: Any) -> dict[str, Any]:
    """The state of a page with some of it changed."""
    return {**given, **changes}
