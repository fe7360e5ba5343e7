"""The server with its console."""

from __future__ import annotations

from functools import partial

from everlog.console.console import console_running
from everlog.console.routes import CONSOLE_ROUTES
from everlog.server import app, server

CONSOLE = app.AppPart(CONSOLE_ROUTES, console_running)

make_app = partial(app.make_app, parts=[CONSOLE])
serving = partial(server.serving, parts=[CONSOLE])
