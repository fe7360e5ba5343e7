"""Documents over HTTP under load from `wrk`, beside a server that does nothing but answer: what is left of HTTP alone.

wrk is a program of its own, written in C: it costs a fraction of what a client in Python does, which shares the
processors with the server.
"""

from __future__ import annotations

import asyncio
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

from bench.document_requests import CONTENT, OverHttp, document
from bench.payloads import make_payloads
from bench.report import Line, line_of, relate
from bench.rounds import Contender, Round, alternate
from bench.server_process import STOP_S, serving
from bench.settings import Settings
from everlog.config import load_config

UNIT = "requests/s"
Method = Literal["GET", "PUT"]
_SCRIPT = """
local n, headers = 0, {["Content-Type"] = "application/json"}
function request()
  n = n + 1
  return wrk.format("%(method)s", "%(path)s" .. (n %% %(documents)d), headers, %(body)s)
end
function done(summary, latency)
  local e = summary.errors
  local failed = e.connect + e.read + e.write + e.status + e.timeout
  io.write(string.format('\\n{"requests":%%d,"us":%%d,"p50":%%f,"p99":%%f,"errors":%%d}\\n',
    summary.requests, summary.duration, latency:percentile(50), latency:percentile(99), failed))
end
"""


class Load:
    """wrk with a script, against one server."""

    def __init__(self, settings: Settings, url: str, method: Method, name: str) -> None:
        self._settings = settings
        self._url = url
        self._script = settings.folder / f"{name}-{method}.lua"
        body = json.dumps(make_payloads(1, settings.payload_bytes, settings.seed)[0])
        path, number = f"{CONTENT}/{document(0)}", "0"
        self._script.write_text(
            _SCRIPT
            % {
                "method": method,
                "path": path.removesuffix(number),
                "documents": settings.documents,
                "body": f"[==[{body}]==]" if method == "PUT" else "nil",
            }
        )
        self.p50: list[float] = []
        self.p99: list[float] = []

    def run(self) -> Round:
        clients, seconds = self._settings.document_clients, self._settings.http_load_s
        words = [_program(), "-t1", f"-c{clients}", f"-d{seconds}s", "-s", str(self._script), self._url]
        done = subprocess.run(words, capture_output=True, text=True, check=True)
        found = json.loads(done.stdout.splitlines()[-1])
        if found["errors"]:
            raise RuntimeError(f"{found['errors']} requests failed:\n{done.stdout}")
        self.p50.append(found["p50"] / 1000)
        self.p99.append(found["p99"] / 1000)
        return Round(found["requests"], found["us"] / 1e6)


def http(settings: Settings) -> list[Line]:
    """Reads and writes of documents, beside the bare server's answer to the same requests."""
    served = settings.folder / "http-served"
    served.mkdir()
    lines = []
    with serving(load_config(served), settings.folder) as url, _bare() as bare:
        asyncio.run(_fill(url, settings))
        for method in ("GET", "PUT"):
            own = Load(settings, url, method, "own")
            alone = Load(settings, bare, method, "bare")
            name = "Everlog" if method == "GET" else "Everlog, each write on the disk"
            contenders = [Contender(name, own.run), Contender("uvicorn alone, a fixed answer", alone.run)]
            alternate(contenders, settings.rounds)
            found = [line_of(f"http: {method}", one, UNIT) for one in contenders]
            for line, load in zip(found, (own, alone), strict=True):
                # Of the rounds that count: the first one was the warm-up.
                percentiles = {"p50": statistics.median(load.p50[1:]), "p99": statistics.median(load.p99[1:])}
                line.milliseconds = {key: round(value, 3) for key, value in percentiles.items()}
            relate(found[0], found[1:])
            lines += found
    return lines


async def _fill(url: str, settings: Settings) -> None:
    """All documents, so that every read finds one and every write replaces one."""
    requester = OverHttp(url, settings.documents, make_payloads(100, settings.payload_bytes, settings.seed))
    await requester.open(settings.document_clients)
    await requester.run("PUT", settings.documents, settings.document_clients)
    await requester.close()


def _program() -> str:
    found = os.environ.get("EVERLOG_WRK")
    if not found:
        raise RuntimeError("wrk is not there: install Debian's package, or name it with EVERLOG_WRK=/path/to/wrk")
    return found


@contextmanager
def _bare() -> Iterator[str]:
    words = [sys.executable, str(Path(__file__).with_name("bare_server.py"))]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            yield json.loads(process.stdout.readline())["url"]
        finally:
            process.terminate()
            try:
                process.wait(STOP_S)
            except subprocess.TimeoutExpired:
                process.kill()
