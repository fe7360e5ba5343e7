"""`everlog projections …`."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
import uuid
from pathlib import Path

import pytest
from msgspec.structs import replace

from everlog import Event, Projection, Recovery, records, tag
from everlog.cli.projections import load_app, read_offset
from everlog.errors import InvalidOffset, InvalidProjection
from everlog.projections.offsets import RecordPlace
from everlog.projections.port import Report
from everlog.projections.projection_id import ProjectionId
from everlog.testing import replicate
from tests.cli_support import Cli
from tests.waiting import until

KEY = "journal-orders"


async def handler(record) -> None:
    if record.key == "bad":
        raise ValueError("a poison event")


def declared() -> Projection:
    return Projection("orders", source=records("orders"), handler=handler, recovery=Recovery.skip())


@pytest.fixture
def cli(tmp_path) -> Cli:
    """A projection that has handled three records and given up one; it does not run any more."""
    cli = Cli(tmp_path / "data")

    async def work(log) -> None:
        for key in ("a", "b", "bad", "c"):
            token = await log.journal("orders").append(key, Event("x"))
        async with log.projections.run(declared()) as runner:
            await until(lambda: (report := runner.status()["orders"].get(KEY)) and report.handled + report.skipped == 4)
            await log.projections.wait("orders", token)

    cli.library(work)
    return cli


def test_what_ran_is_listed_and_shown(cli):
    (found,) = cli.lines("projections", "list")
    assert (found["name"], found["key"], found["state"], found["dead_letters"]) == ("orders", KEY, "stopped", 1)
    assert found["lag"] == {"events": 0, "seconds": 0.0}
    assert (found["handled"], found["skipped"]) == (3, 1)
    assert cli.json("projections", "show", "orders")["offset"] == found["offset"]
    cli.run("journal", "append", "orders", "d", "--payload", "x")
    assert cli.json("projections", "show", "orders")["lag"]["events"] == 1
    assert "orders  journal-orders  stopped  1" in cli.out("projections", "list")
    assert "dead letters  1" in cli.out("projections", "show", "orders")
    assert cli.lines("projections", "list", "other") == []
    assert cli.out("projections", "list", "other") == "no projection ever ran here\n"


def test_offsets_are_set_and_cleared(cli):
    words = ("projections", "set", "orders", "journal-orders-0=0", "--type", "map")
    before = cli.json("projections", "show", "orders")["offset"]
    wrong = cli.error(*words, "--expected", "journal-orders-0=7", code=3)
    assert (wrong["type"], wrong["actual"]) == ("OffsetConflict", before)
    as_map = ",".join(f"{entry}={place}" for entry, place in before.items())
    cli.run(*words, "--expected", as_map, "--key", KEY)
    assert cli.json("projections", "show", "orders")["offset"] == {"journal-orders-0": 0}
    cli.run("projections", "clear", "orders")
    assert cli.json("projections", "show", "orders")["offset"] is None
    cli.run(*words, "--expected", "none")
    for wrong in (["7"], ["7", "--type", "text"], ["x-0=7", "--type", "map"]):
        assert cli.error("projections", "set", "orders", *wrong, code=2)["type"] == "InvalidOffset"


def test_offsets_are_read():
    assert read_offset("7", "long") == 7
    assert read_offset("7", "text") == "7"
    assert read_offset("a=1,b=c=2", "map") == {"a": 1, "b=c": 2}
    assert read_offset("a=17/2", "map") == {"a": RecordPlace(17, 2)}
    place = "49225740-2019-11ea-a752-ffae2393b6e4"
    assert read_offset(f"slices-0-15={place}", "map") == {"slices-0-15": uuid.UUID(place)}
    for text, kind in (("x", "long"), ("no", "uuid"), ("a", "map"), ("=1", "map"), ("a=x", "map")):
        with pytest.raises(InvalidOffset):
            read_offset(text, kind)


def test_a_pause_is_remembered(cli):
    assert cli.json("projections", "pause", "orders", "--wait", "5") == {"name": "orders", "key": None}
    assert cli.json("projections", "show", "orders")["paused"]
    assert "paused" in cli.out("projections", "list")
    assert cli.out("projections", "resume", "orders") == "orders: resumed\n"
    assert not cli.json("projections", "show", "orders")["paused"]


def test_dead_letters(cli):
    (letter,) = cli.lines("projections", "dead-letters", "orders")
    event = letter["event"]
    assert (event["topic"], event["id"], event["seq_nr"], event["payload"]) == ("orders", "bad", 1, "x")
    assert "orders  bad  1      x" in cli.out("projections", "dead-letters", "orders")
    assert (letter["cause"], letter["attempts"], letter["requested"]) == ("ValueError: a poison event", 1, False)
    assert "a poison event" in cli.out("projections", "dead-letters", "orders")
    assert cli.json("projections", "replay", "orders", "--offset", letter["offset"])["count"] == 1
    assert cli.lines("projections", "dead-letters", "orders")[0]["requested"]
    assert cli.json("projections", "forget", "orders")["count"] == 1
    assert cli.out("projections", "dead-letters", "orders") == "no dead letters\n"


def test_skips_and_waits(cli):
    assert "nothing is failing" in cli.error("projections", "skip", "orders", code=2)["message"]
    for wrong in ("no such thing", "journal-orders-0=9", "journal-orders-0=0"):
        cli.error("projections", "skip", "orders", "--offset", wrong, code=2)
    token = cli.json("journal", "append", "orders", "z", "--payload", "x")["token"]
    place = "journal-orders-{1}={2}".format(*token.split(":"))
    assert cli.json("projections", "skip", "orders", "--offset", place)["offset"] == place
    assert cli.error("projections", "wait", "orders", token, "--timeout", "0.05", code=75)["type"] == "StillBehind"
    partition = token.split(":")[1]
    assert cli.out("projections", "wait", "orders", f"orders:{partition}:0") == f"orders: has orders:{partition}:0\n"


def test_a_killed_owner_is_silent_and_a_version_waits(cli):
    """What a process left that did not shut down, and what one says that cannot write to the view."""

    async def leave(log) -> None:
        store = await log.projections.store()
        lease = await store.take(ProjectionId("orders", KEY), "dead", (await store.leases("orders"))[KEY])
        await store.renew(lease, Report(state="running", updated_ms=1))
        await log.projections.request_rebuild("orders")
        owned = {"owner": "dead", "beat": 1, "beat_ms": 1}
        await store.update_copies("orders", lambda seen: replace(seen, rebuild=replace(seen.rebuild, **owned)))

    cli.library(leave)
    (found,) = cli.lines("projections", "list")
    assert (found["state"], "start it again with 'everlog projections run'" in found["remedy"]) == ("silent", True)
    assert cli.json("projections", "copies", "orders")["rebuild"]["state"] == "silent"
    assert "stopped reporting" in cli.out("projections", "copies", "orders")

    async def wait(log) -> None:
        store = await log.projections.store()
        lease = (await store.leases("orders"))[KEY]
        await store.release(lease, Report(state="stopped"))
        now_ms = round(time.time() * 1000)
        await store.update_copies("orders", lambda seen: seen.recorded("1").waits("2", now_ms))

    cli.library(wait)
    (found,) = cli.lines("projections", "list")
    assert (found["state"], "version '2' waits" in found["remedy"]) == ("waiting", True)


def test_a_number_is_no_offset_of_a_tag(cli):
    async def work(log) -> None:
        token = await log.journal("orders").append("t", Event("x", tags={"eu"}))
        await replicate(log)
        async with log.projections.run(Projection("tagged", source=tag("eu"), handler=handler_of_tag)):
            await log.projections.wait("tagged", token)

    async def handler_of_tag(event) -> None:
        """Does nothing."""

    cli.library(work)
    before = cli.json("projections", "show", "tagged")["offset"]
    assert cli.error("projections", "set", "tagged", "5", code=2)["type"] == "InvalidOffset"
    assert cli.json("projections", "show", "tagged")["offset"] == before


def test_a_view_is_verified(cli, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "verified.py").write_text(
        textwrap.dedent("""
            from everlog import exactly_once, projection, records

            @projection("keys", source=records("orders"), strategy=exactly_once())
            async def app(record, view):
                await view.execute("INSERT INTO keys VALUES (?)", record.key)
            """)
    )

    async def fill(log) -> None:
        await log.projections.view("keys").execute("CREATE TABLE keys (key TEXT)")
        async with log.projections.run(*load_app("verified:app")):
            for key in "efgh":
                await log.projections.wait("keys", await log.journal("orders").append(key, Event("x")))
            while (await log.projections.get("keys")).lag.events:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    async def damage(log) -> None:
        await log.projections.view("keys").execute("INSERT INTO keys VALUES ('e')")

    cli.library(fill)
    words = ("verify", "projection", "keys", "--app", "verified:app", "--table", "keys")
    assert cli.json(*words) == {"table": "keys", "rows": 8, "missing": 0, "surplus": 0}
    assert cli.out(*words) == "keys: 8 rows, as counted again\n"
    cli.library(damage)
    assert "lacks 1 rows and has 1 too many" in cli.out(*words, code=1)
    assert "no projection" in cli.error(*words[:2], "others", *words[3:], code=2)["message"]


def test_a_view_is_rebuilt_and_switched(cli, tmp_path, monkeypatch):
    """rebuild, switch, back, abort; each with --json; what is not possible is named."""
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "rebuilt.py").write_text(
        textwrap.dedent("""
            from everlog import exactly_once, projection, records

            @projection("keys", source=records("orders"), strategy=exactly_once(), tables=["keys"])
            async def app(record, view):
                await view.execute("INSERT INTO keys (key) VALUES (?)", record.key)
            """)
    )

    async def fill(log) -> None:
        await log.projections.view("keys").execute("CREATE TABLE keys (key TEXT)")
        async with log.projections.run(*load_app("rebuilt:app")):
            await log.projections.wait("keys", await log.journal("orders").append("e", Event("x")))
            while (await log.projections.get("keys")).lag.events:  # noqa: ASYNC110
                await asyncio.sleep(0.01)

    cli.library(fill)
    (tmp_path / "schema.sql").write_text("CREATE TABLE keys (key TEXT, n INTEGER DEFAULT 1);\n")
    words = ("projections", "rebuild", "keys", "--app", "rebuilt:app")
    assert "--app" in cli.error("projections", "rebuild", "keys", code=2)["message"]
    assert cli.json(*words, "--schema", str(tmp_path / "schema.sql")) == {"name": "keys", "copy": 1, "handled": 5}
    assert cli.json("projections", "switch", "keys") == {
        "name": "keys",
        "current": 1,
        "building": None,
        "filled": False,
        "previous": 0,
        "version": "",
        "waiting": {},
        "rebuild": None,
        "verify": None,
    }
    assert [one["name"] for one in cli.lines("projections", "list")] == ["keys", "keys~1", "orders"]
    assert cli.out("projections", "switch", "keys", "--back") == "keys: copy 0 is read from now on\n"
    assert "copy 2 is filled, 5 events" in cli.out(*words)
    assert cli.json("projections", "abort", "keys")["building"] is None
    assert "no copy is being built" in cli.error("projections", "abort", "keys", code=2)["message"]
    assert "no copy is being built" in cli.error("projections", "switch", "keys", code=2)["message"]


def test_a_view_is_rebuilt_and_verified_on_request(cli):
    """Whoever runs the projection does it; `copies` says how far it is, and what came of it."""
    cli.library(lambda log: log.projections.view("keys").execute("CREATE TABLE keys (key TEXT)"))

    async def insert(record, view) -> None:
        await view.execute("INSERT INTO keys VALUES (?)", record.key)

    keys = Projection("keys", source=records("orders"), handler=insert, tables=["keys"])

    async def work(log) -> None:
        async with log.projections.run(keys):
            while True:
                seen = await log.projections.copies("keys")
                if (await log.projections.get("keys")).lag.events == 0 and all(
                    one is None or not one.open or seen.filled for one in (seen.rebuild, seen.verify)
                ):
                    return
                await asyncio.sleep(0.01)

    async def start(log) -> None:
        async with log.projections.run(keys):
            token = await log.journal("orders").append("e", Event("x"))
            await log.projections.wait("keys", token)

    cli.library(start)
    assert cli.out("projections", "copies", "keys") == "keys: copy 0 is read\n"
    verify, rebuild = ("verify", "projection", "keys"), ("projections", "rebuild", "keys")
    assert cli.json(*verify, "--request")["verify"]["state"] == "waiting"
    assert "verification: asked for at" in cli.out("projections", "copies", "keys")
    assert cli.json(*verify, "--cancel")["verify"] is None
    assert "'everlog projections copies keys' says" in cli.out(*verify, "--request")
    cli.library(work)
    (found,) = cli.json("projections", "copies", "keys")["verify"]["differences"]
    assert (found["rows"], found["equal"]) == (5, True)
    assert "  keys: 5 rows, as counted again" in cli.out("projections", "copies", "keys")
    assert "a second copy is requested" in cli.out(*rebuild, "--request")
    cli.library(work)
    assert "keys: copy 0 is read, copy 1 is filled\nrebuild: " in cli.out("projections", "copies", "keys")
    assert cli.json("projections", "switch", "keys")["rebuild"] is None
    assert cli.error("projections", "copies", "keys~1", code=4)["type"] == "UnknownProjection"
    for words in (
        (*rebuild, "--request", "--follow"),
        (*verify, "--request", "--cancel"),
        (*verify, "--cancel", "--table", "x"),
    ):
        assert "--request" in cli.error(*words, code=2)["message"]
    for words in (
        ("projections", "copies"),
        ("verify", "projection", "--cancel"),
        ("verify", "projection", "--request"),
    ):
        assert cli.error(*words, "nobody", code=4)["type"] == "UnknownProjection"


def test_statements_can_be_watched(cli):
    assert "FROM projection_lease" in cli.run("projections", "list", "--trace").stderr


def test_unknown_projections_are_named(cli):
    for words in (
        ("show",),
        ("clear",),
        ("pause",),
        ("resume",),
        ("skip",),
        ("dead-letters",),
        ("replay",),
        ("forget",),
    ):
        assert cli.error("projections", *words, "nobody", code=4)["type"] == "UnknownProjection"
    assert cli.error("projections", "show", "orders", "--key", "other", code=4)["key"] == "other"


def test_an_app_is_imported(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shop_views.py").write_text(
        "from tests.cli.test_projections import declared\none = declared()\nmany = [one]\nnone = []\nbad = 7\n"
    )
    (tmp_path / "shop_broken.py").write_text("1 / 0\n")
    assert [one.name for one in load_app("shop_views:one")] == ["orders"]
    assert [one.name for one in load_app("shop_views:many")] == ["orders"]
    for where in ("shop_views", "shop_views:", "shop_views:absent", "shop_views:none", "shop_views:bad"):
        with pytest.raises(InvalidProjection):
            load_app(where)
    for where in ("shop_absent:app", "shop_broken:app"):
        with pytest.raises(InvalidProjection, match="cannot be imported"):
            load_app(where)


def test_run_runs_until_it_is_told_to_end(cli, tmp_path):
    (tmp_path / "counting.py").write_text(
        textwrap.dedent("""
            from everlog import projection, records

            @projection("counting", source=records("orders"))
            async def app(record): ...
            """)
    )
    command = [sys.executable, "-m", "everlog.cli", "projections", "run", "counting:app", "--json"]
    environment = {**os.environ, "EVERLOG_DATA": str(cli.folder), "PYTHONPATH": str(Path.cwd())}
    process = subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert json.loads(process.stdout.readline()) == {"running": ["counting"]}
    token = cli.json("journal", "append", "orders", "a", "--payload", "x")["token"]
    cli.run("projections", "wait", "counting", token)
    cli.run("projections", "pause", "counting", "--wait", "60")
    assert cli.json("projections", "show", "counting")["state"] == "paused"
    process.send_signal(signal.SIGTERM)
    assert process.communicate(timeout=60) == ("", "")
    assert process.returncode == 0
    assert cli.json("projections", "show", "counting")["owner"] is None


def test_projections_on_spark_are_checked_before_spark_starts(cli):
    """With --once they would never end; what cannot be imported is named."""
    assert "--once" in cli.error("replicate", "--once", "--projections", "x:y", code=2)["message"]
    assert "cannot be imported" in cli.error("replicate", "--projections", "nowhere:app", code=2)["message"]
