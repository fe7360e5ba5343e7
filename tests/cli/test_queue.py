"""`everlog queue` and `everlog work`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import textwrap

import pytest

from everlog.errors import StorageFailed
from everlog.queues.operations import AskStats
from everlog.queues.sqlite.queue_store import SqliteQueueStore
from tests.cli_support import Cli


@pytest.fixture
def cli(tmp_path):
    return Cli(tmp_path / "data")


def test_a_job_from_put_to_done(cli):
    assert cli.json("queue", "put", "pages", "p1", "--payload", "a")["result"] == "CREATED"
    assert cli.json("queue", "put", "pages", "p1", "--payload", "b", "--priority", "new-page")["result"] == "MERGED"
    assert cli.out("queue", "put", "pages", "p2", "--delay", "1h").startswith("created: job ")
    first, second = cli.lines("queue", "peek", "pages")
    assert (first["key"], first["data"], first["priority"], first["status"]) == ("p1", "b", 20, "W")
    assert (second["key"], second["data"]) == ("p2", None)
    assert "p2" in cli.out("queue", "peek", "pages")
    (job,) = cli.lines("queue", "claim", "pages", "--lease", "10m", "--owner", "me")
    assert (job["key"], job["attempt"], job["owner"]) == ("p1", 1, "me")
    assert cli.lines("queue", "peek", "pages", "--key", "p1")[0]["status"] == "P"
    assert cli.json("queue", "put", "pages", "p1")["result"] == "SUCCESSOR"
    assert cli.json("queue", "done", "pages", job["handle"])["outcome"] == "done"
    assert cli.error("queue", "done", "pages", job["handle"], code=3)["type"] == "LeaseLost"
    (stats,) = cli.lines("queue", "stats")
    assert (stats["queue"], stats["ready"], stats["delayed"], stats["running"]) == ("pages", 1, 1, 0)
    assert "pages" in cli.out("queue", "stats", "pages")


def test_dead_letters_and_flags(cli):
    cli.run("queue", "put", "jobs", "k", "--json-payload", '{"n": 1}')
    for _ in range(5):
        (job,) = cli.lines("queue", "claim", "jobs")
        cli.run("queue", "done", "jobs", job["handle"], "--failed", "broken")
    (letter,) = cli.lines("queue", "dead", "jobs")
    assert (letter["key"], letter["data"], letter["reason"], len(letter["attempts"])) == ("k", {"n": 1}, "broken", 5)
    assert "broken" in cli.out("queue", "dead", "jobs")
    assert json.loads(cli.run("queue", "flags", "jobs", "--json", code=1).stdout)["reason"] == "failed"
    assert "failed" in cli.run("queue", "flags", "jobs", code=1).stdout
    cli.run("queue", "flags", "jobs", "--ack", "failed")
    assert cli.out("queue", "flags", "jobs") == ""
    cli.run("queue", "flags", "jobs", "--ack", "failed", code=4)
    assert cli.json("queue", "revive", "jobs", str(letter["entry"]))["revived"] == 1
    cli.run("queue", "revive", "jobs", str(letter["entry"]), code=4)
    assert cli.json("queue", "revive", "jobs", "--all")["revived"] == 0
    cli.run("queue", "revive", "jobs", code=2)
    assert cli.lines("queue", "claim", "jobs")[0]["attempt"] == 1


def test_list_and_purge(cli):
    for key in ("a", "b"):
        cli.run("queue", "put", "pages", key)
    cli.run("queue", "put", "mails", "m", "--delay", "1h")
    cli.run("queue", "claim", "pages", "--limit", "1")
    found = {one["queue"]: one for one in cli.lines("queue", "list")}
    assert (found["pages"]["waiting"], found["pages"]["running"], found["mails"]["waiting"]) == (1, 1, 1)
    assert "mails" in cli.run("queue", "list").output
    assert "removes 1 job of pages for good" in cli.run("queue", "purge", "pages", code=2).output
    assert "removes 2 jobs of pages" in cli.run("queue", "purge", "pages", "--running", code=2).output
    assert cli.lines("queue", "purge", "pages", "--yes") == [{"queue": "pages", "purged": 1}]
    assert cli.out("queue", "purge", "pages", "--running", "--yes") == "removed 1 job of pages\n"
    cli.run("queue", "purge", "nothing", "--yes", code=4)


def test_delete(cli):
    for key in ("a", "b"):
        cli.run("queue", "put", "pages", key)
    cli.run("queue", "claim", "pages")
    assert (
        "removes pages for good, with 2 jobs and 0 dead letters" in cli.run("queue", "delete", "pages", code=2).output
    )
    assert "delete(running=True)" in cli.run("queue", "delete", "pages", "--yes", code=75).output
    assert cli.lines("queue", "delete", "pages", "--running", "--yes") == [{"queue": "pages", "deleted": 2}]
    cli.run("queue", "delete", "pages", "--yes", code=4)
    cli.run("queue", "put", "pages", "a")
    assert cli.out("queue", "delete", "pages", "--yes") == "deleted pages and 1 job\n"
    assert cli.lines("queue", "list") == []


def test_one_job(cli):
    entry = str(cli.lines("queue", "put", "pages", "a", "--payload", "x", "--delay", "1h")[0]["entry"])
    (job,) = cli.lines("queue", "job", "pages", entry)
    assert (job["queue"], job["state"], job["key"], job["data"]) == ("pages", "waiting", "a", "x")
    assert [reason["code"] for reason in job["why"]] == ["not_due"]
    assert "It is not due" in cli.run("queue", "job", "pages", entry).output
    cli.run("queue", "cancel", "pages", "a", "--reason", "no")
    assert "dead letter" in cli.run("queue", "job", "pages", entry).output
    assert "pages has no job 4711" in cli.run("queue", "job", "pages", "4711", code=4).output
    cli.run("queue", "job", "pages", "--", "-1", code=2)


def test_pause_resume_cancel_release(cli):
    cli.run("queue", "put", "jobs", "k")
    assert cli.out("queue", "pause", "jobs") == "jobs is paused\n"
    assert cli.lines("queue", "claim", "jobs") == []
    cli.run("queue", "resume", "jobs")
    (job,) = cli.lines("queue", "claim", "jobs")
    cli.run("queue", "done", "jobs", job["handle"], "--release")
    assert "k" in cli.out("queue", "claim", "jobs")
    assert cli.json("queue", "cancel", "jobs", "k", "--reason", "no")["cancelled"] == 1
    cli.run("queue", "cancel", "jobs", "other", code=4)


def test_what_is_wrong_is_said(cli, tmp_path):
    cli.run("queue", "put", "jobs", "k")
    for words in (
        ("put", "jobs", "k", "--priority", "256"),
        ("put", "jobs", "k", "--priority", "soon"),
        ("put", "jobs", "k", "--delay", "soon"),
        ("put", "jobs", "k", "--at", "tomorrow"),
        ("put", "jobs", "k", "--at", "2026-01-01", "--delay", "1s"),
        ("put", "no name", "k"),
        ("done", "jobs", "7"),
        ("done", "jobs", "7/1", "--failed", "x", "--release"),
        ("declare", str(tmp_path / "no.xml")),
    ):
        cli.run("queue", *words, code=2)
    for words in (("peek", "nothing"), ("claim", "nothing"), ("stats", "nothing"), ("pause", "nothing")):
        assert cli.error("queue", *words, code=4)["type"] == "QueueNotFound"


def test_a_declaration_from_a_file(cli, tmp_path):
    file = tmp_path / "queues.xml"
    file.write_text(
        '<context><table name="pages" model="queue" row-key="page"><schema><column name="page" type="uint8"/>\n'
        '<column name="title" type="string"/></schema><journal max-wait="1m"/></table></context>'
    )
    assert cli.json("queue", "declare", str(file)) == {"queue": "pages", "version": 1, "options": {"max_wait": "1m"}}
    cli.run("queue", "put", "pages", "7", "--json-payload", '{"title": "x"}')
    cli.run("queue", "put", "pages", "7", "--json-payload", '{"name": "x"}', code=2)
    for wrong in ("p1", "256", "1,2"):
        cli.run("queue", "put", "pages", wrong, code=2)
    (job,) = cli.lines("queue", "peek", "pages", "--key", "7")
    assert (job["key"], job["data"]) == (7, {"title": "x"})
    cli.run("queue", "cancel", "pages", "7")
    file.write_text(file.read_text().replace("max-wait", "max-wiat"))
    error = cli.error("queue", "declare", str(file), code=2)
    assert (error["line"], error["attribute"]) == (2, "max-wiat")


MODULE = """
import everlog

@everlog.job("pages")
async def index(job):
    print("indexed", job.key, flush=True)

@everlog.job("forever", timeout="1s")
async def forever(job):
    import asyncio
    print("started", flush=True)
    await asyncio.Event().wait()

@everlog.job("mails", kind="welcome")
async def welcome(to: str):
    print("welcome", to, flush=True)

@everlog.job("mails", kind="goodbye")
def goodbye(to: str):
    print("goodbye", to, flush=True)

mails = [welcome, goodbye]
app = [index]
nothing = []
"""


@pytest.fixture
def worker(tmp_path, cli):
    """`everlog work …` as a process, in a folder with a module of jobs."""
    (tmp_path / "shop.py").write_text(textwrap.dedent(MODULE))

    def start(*words, grace=30):
        (cli.folder).mkdir(exist_ok=True)
        (cli.folder / "everlog.toml").write_text(f"[queue]\ngrace_s = {grace}\n")
        command = [sys.executable, "-m", "everlog.cli", "work", *words, "--data", str(cli.folder)]
        return subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True, env={**os.environ})

    return start


def test_work_until_nothing_is_left(cli, worker):
    for number in range(3):
        cli.run("queue", "put", "pages", f"p{number}")
    process = worker("shop:app", "--until-empty")
    out, _ = process.communicate(timeout=60)
    assert process.returncode == 0
    lines = out.splitlines()
    assert lines[0].endswith("works on pages")
    assert sorted(lines[1:-2]) == ["indexed p0", "indexed p1", "indexed p2"]
    assert lines[-2].startswith("pages: 3 in 0.")
    assert lines[-1] == "3 done"


@pytest.mark.parametrize("method", ["names", "execute"])
def test_work_until_nothing_is_left_outlasts_an_outage(cli, tmp_path, monkeypatch, method):
    """The look whether anything is left fails once: the command ends all the same, when nothing is."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / f"shop_{method}.py").write_text(textwrap.dedent(MODULE))
    cli.run("queue", "put", "pages", "p1")
    failed: list[str] = []
    whole = getattr(SqliteQueueStore, method)

    async def fail_once(store, *given):
        if not failed and (method == "names" or isinstance(given[1], AskStats)):
            failed.append(method)
            raise StorageFailed("out of reach")
        return await whole(store, *given)

    monkeypatch.setattr(SqliteQueueStore, method, fail_once)
    assert cli.out("work", f"shop_{method}:app", "--until-empty").splitlines()[-1] == "1 done"
    assert failed == [method]


def test_work_on_kinds_with_middleware(cli, worker, tmp_path):
    (tmp_path / "around.py").write_text(
        textwrap.dedent(
            """
            async def outer(job, call_next):
                print("outer", job.kind, flush=True)
                return await call_next(job)

            async def inner(job, call_next):
                print("inner", job.kind, flush=True)
                return await call_next(job)

            number = 5
            """
        )
    )
    cli.run("queue", "put", "mails", "a", "--kind", "welcome", "--json-payload", '{"to": "eve"}')
    cli.run("queue", "put", "mails", "b", "--kind", "goodbye", "--json-payload", '{"to": 5}')
    cli.run("queue", "put", "mails", "c", "--kind", "not-known")
    process = worker("shop:mails", "--until-empty", "--middleware", "around:outer", "--middleware", "around:inner")
    out, _ = process.communicate(timeout=60)
    lines = out.splitlines()
    assert (process.returncode, lines[0].partition(" ")[2], lines[-1]) == (
        0,
        "works on mails",
        "1 done, 1 failed, 1 unknown_kind",
    )
    figures = [line.partition(" in ")[0] + line.rpartition(" s")[2] for line in lines[-3:-1]]
    assert figures == ["mails/goodbye: 1, 1 raised", "mails/welcome: 1"]
    assert sorted(lines[1:-3]) == ["inner goodbye", "inner welcome", "outer goodbye", "outer welcome", "welcome eve"]
    assert lines.index("outer welcome") < lines.index("inner welcome") < lines.index("welcome eve")
    assert "'to' does not fit" in cli.out("queue", "dead", "mails")
    assert "unknown_kind" in cli.run("queue", "flags", "mails", code=1).stdout
    for wrong in ("around:missing", "no_such_module:x", "around:number"):
        process = worker("shop:mails", "--until-empty", "--middleware", wrong)
        process.communicate(timeout=60)
        assert process.returncode == 2


def test_the_history(cli, tmp_path):
    (tmp_path / "queues.xml").write_text(
        '<context><table name="kept" model="queue" row-key="page"><schema><column name="page" type="string"/></schema>'
        '<journal keep-done="7d"/></table></context>'
    )
    cli.run("queue", "declare", str(tmp_path / "queues.xml"))
    for key in ("a", "b"):
        cli.run("queue", "put", "kept", key)
        (job,) = cli.lines("queue", "claim", "kept", "--owner", "me")
        cli.run("queue", "done", "kept", job["handle"])
    found = cli.lines("queue", "history", "kept")
    assert [(job["key"], job["how"], job["owner"], job["attempts"]) for job in found] == [
        ("b", "done", "me", []),
        ("a", "done", "me", []),
    ]
    assert found[0]["inserted"] <= found[0]["claimed"] <= found[0]["ended"]
    assert cli.lines("queue", "history", "kept", "--key", "a") == [found[1]]
    assert "me" in cli.run("queue", "history", "kept").output


def test_work_gives_back_what_it_cannot_finish(cli, worker):
    cli.run("queue", "put", "forever", "k")
    process = worker("shop:forever", grace=0)
    assert process.stdout is not None
    process.stdout.readline()
    assert process.stdout.readline() == "started\n"
    process.send_signal(signal.SIGTERM)
    out, _ = process.communicate(timeout=60)
    assert (process.returncode, out.splitlines()[-1]) == (0, "1 released")
    (job,) = cli.lines("queue", "peek", "forever")
    assert (job["status"], job["timeouts"], job["claimed"]) == ("W", 0, None)
    assert job["inserted"] <= job["due"]


@pytest.mark.parametrize("target", ["no_such_module", "shop:missing", "shop:nothing", "json"])
def test_work_needs_functions(cli, target, tmp_path, monkeypatch):
    (tmp_path / "shop.py").write_text(textwrap.dedent(MODULE))
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    cli.run("work", target, code=2)


def test_a_server_instead_of_a_folder(cli, tmp_path):
    """`--data http://…`: put, peek, work and the rest go to the server."""
    (tmp_path / "served_jobs.py").write_text(
        textwrap.dedent(
            """
            import everlog

            @everlog.job("jobs")
            async def work(job):
                print("ran", job.key)
            """
        )
    )
    environment = {**os.environ, "EVERLOG_DATA": str(cli.folder)}
    command = [sys.executable, "-m", "everlog.cli", "serve", "--port", "0", "--json"]
    server = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE)
    try:
        url = json.loads(server.stdout.readline())["url"]
        remote = Cli(url)
        assert remote.json("queue", "put", "jobs", "k", "--payload", "hello")["result"] == "CREATED"
        (info,) = cli.lines("queue", "peek", "jobs")
        assert (info["key"], info["data"]) == ("k", "hello")
        assert remote.error("queue", "stats", "none", code=4)["type"] == "QueueNotFound"
        (job,) = remote.lines("queue", "claim", "jobs")
        remote.run("queue", "done", "jobs", job["handle"], "--failed", "again")
        ran = subprocess.run(
            [sys.executable, "-m", "everlog.cli", "work", "served_jobs", "--until-empty", "--data", url],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        )
        assert "ran k" in ran.stdout
        assert remote.lines("queue", "stats", "jobs")[0]["ready"] == 0
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
        server.stdout.close()
