"""`everlog docs …` and `everlog serve`."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys

import httpx
import pytest

from tests.cli_support import Cli


@pytest.fixture
def cli(tmp_path) -> Cli:
    return Cli(tmp_path / "data")


def test_documents(cli):
    written = cli.json("docs", "put", "shop/settings", '{"currency": "EUR", "n": 1.50}')
    assert (written["path"], written["revision"], written["created"]) == ("shop/settings", 1, True)
    assert cli.out("docs", "put", "shop/settings", stdin='{"currency": "EUR", "n": 2.50}').endswith("revision 2\n")
    assert cli.out("docs", "get", "shop/settings") == '{"currency":"EUR","n":2.50}\n'
    found = cli.json("docs", "get", "shop/settings")
    assert (found["revision"], found["etag"], found["body"]["n"]) == (2, '"2"', 2.5)
    cli.run("docs", "patch", "shop/settings", '{"n": null}', "--if-match", '"2"')
    assert cli.out("docs", "get", "shop/settings", "--at", "1") == '{"currency":"EUR","n":1.50}\n'
    assert cli.error("docs", "patch", "shop/settings", "{}", "--if-match", '"2"', code=3)["code"] == "not_matched"
    cli.run("docs", "delete", "shop/settings", "--wait")
    assert cli.error("docs", "get", "shop/settings", code=4)["code"] == "not_found"
    assert cli.error("docs", "put", "a//b", "1", code=2)["code"] == "invalid-path"
    assert cli.error("docs", "put", "a", "{", code=2)["code"] == "invalid-json"
    assert [line["method"] for line in cli.lines("docs", "history", "shop/settings")][-1] == "feed:delete"
    assert "feed:patch" in cli.out("docs", "history", "shop/settings", "--reverse", "--limit", "2")


def test_following_a_filter(cli):
    for number in (1, 2):
        cli.run("docs", "put", f"c~/{number}", json.dumps({"n": number}))
    lines = cli.lines("docs", "follow", "c~", "--filter", "n > 1", "--once")
    assert [(line["kind"], line["id"]) for line in lines] == [("reset", ""), ("present", "2"), ("complete", "")]
    cli.run("docs", "delete", "c~/2")
    after = ["--after", lines[-1]["position"]]
    assert cli.out("docs", "follow", "c~", "--filter", "n>1", "--once", *after) == "left      3  2\n"
    assert cli.error("docs", "follow", "c~", "--once", *after, code=2)["code"] == "position-of-another-query"


def test_a_list_of_collections_and_parts_of_bodies(cli):
    for path in ("shop/tea & co~/1", "shop/a~/1", "other~/1"):
        cli.run("docs", "put", path, '{"n": 1, "b": {"c": 2, "d": 3}}')
    assert [one["path"] for one in cli.lines("docs", "collections")] == ["other~", "shop/a~", "shop/tea & co~"]
    assert [one["path"] for one in cli.lines("docs", "collections", "shop/", "--limit", "1")] == ["shop/a~"]
    assert [one["path"] for one in cli.lines("docs", "collections", "--after", "shop/a~")] == ["shop/tea & co~"]
    assert cli.out("docs", "get", "shop/a~/1", "--fields", "b.c") == '{"b":{"c":2},"id":"1"}\n'
    assert cli.out("docs", "list", "shop/a~", "--fields", "n") == '{"n":1,"id":"1"}\n'


def test_changes_of_many_documents(cli):
    for path in ("shop/a", "other", "shop/c~/1"):
        cli.run("docs", "put", path, '{"n": 1}', "--wait")
    cli.run("docs", "patch", "shop/a", '{"n": 2}', "--wait")
    (line,) = cli.lines("docs", "changes", "shop", "--filter", "n > 1", "--after", "0", "--limit", "1")
    assert (line["path"], line["method"], line["revision"], line["body"]) == ("shop/a", "feed:patch", 2, {"n": 2})
    text = cli.out("docs", "changes", "--template", "shop/{*}~/{*}", "--after", "0", "--limit", "1")
    assert text == '1  feed:put  shop/c~/1  {"n":1,"id":"1"}\n'
    cli.error("docs", "changes", "--after", "x", code=2)


def test_collections(cli):
    for number in (3, 1, 2):
        cli.run("docs", "put", f"c~/{number}", json.dumps({"n": -number}))
    cli.run("docs", "post", "c~", '{"n": -9}', "--message-id", "m")
    assert cli.json("docs", "post", "c~", '{"n": -9}', "--message-id", "m")["revision"] == 4
    lines = cli.lines("docs", "list", "c~", "--filter", "n > -9", "--sort", "n", "--size", "2")
    assert [line["id"] for line in lines] == ["3", "2"]
    assert "there may be more: --after" in cli.run("docs", "list", "c~", "--sort", "n", "--size", "1").stderr
    cli.run("docs", "index", "create", "c~", "--id", "by-n", "--sort=-n", "--filter", "n < 0")
    assert cli.out("docs", "count", "c~", "--filter", "n < -1") == "3\n"
    assert cli.json("docs", "count", "c~") == {"count": 4, "revision": 4}
    assert '"index":"by-n"' in cli.run("docs", "count", "c~", "--filter", "n < -1", "--explain").stderr
    (index,) = cli.lines("docs", "index", "list", "c~")
    assert (index["indexId"], index["status"], index["count"]) == ("by-n", "ready", 4)
    assert "by-n" in cli.out("docs", "index", "list", "c~")
    explained = cli.run("docs", "list", "c~", "--sort", "n", "--filter", "n < 0", "--explain").stderr
    assert json.loads(explained.splitlines()[0])["index"] == "by-n"
    cli.run("docs", "index", "delete", "c~", "by-n")
    assert cli.error("docs", "index", "delete", "c~", "by-n", code=4)["code"] == "index-not-found"
    assert [line["revision"] for line in cli.lines("docs", "feed", "c~", "--after", "1", "--once")] == [2, 3, 4]
    assert cli.out("docs", "feed", "c~", "--after", "3", "--once").startswith("4  feed:put  c~/")


def test_batches(cli):
    operations = [{"method": "put", "id": "x", "body": {"n": 1}}, {"method": "patch", "id": "x", "body": {"n": 2}}]
    for _ in range(2):
        lines = cli.lines("docs", "batch", "c~", "--message-id", "m", "--wait", stdin=json.dumps(operations))
        assert [(line["path"], line["revision"], line["created"]) for line in lines] == [
            ("c~/x", 1, True),
            ("c~/x", 2, False),
        ]
    refused = cli.error("docs", "batch", "c~", json.dumps([*operations, {"method": "delete", "id": "y"}]), code=4)
    assert "operation 2" in json.dumps(refused)
    assert cli.error("docs", "batch", "c~", "{}", code=2)["code"] == "invalid-batch"
    assert len(cli.lines("docs", "history", "c~")) == 2


def test_views(cli):
    cli.run("docs", "put", "a/1", '{"n": 1}')
    cli.run("docs", "put", "a:b/1", '{"n": 2}')
    assert "shows" in cli.out("docs", "view", "put", "v~", "{x}/{y}", "--filter", "n > 0")
    (view,) = cli.lines("docs", "view", "list")
    assert (view["path"], view["status"], view["unshown"]) == ("v~", "ready", 1)
    assert "v~" in cli.out("docs", "view", "list")
    (aside,) = cli.lines("docs", "view", "unshown", "v~")
    assert (aside["source"], aside["code"]) == ("a:b/1", "ambiguous-id")
    assert "a:b/1" in cli.out("docs", "view", "unshown", "v~", "--limit", "5")
    assert cli.json("docs", "view", "retry", "v~") == {"shown": 0, "left": 1}
    assert "1 are still set aside" in cli.out("docs", "view", "retry", "v~", "a:b/1")
    assert [line["id"] for line in cli.lines("docs", "list", "v~")] == ["a:1"]
    cli.run("docs", "view", "delete", "v~")
    assert cli.error("docs", "view", "delete", "v~", code=4)["code"] == "not_found"


def test_schemas(cli):
    cli.run("docs", "put", "c~/1", '{"n": "one"}')
    made = cli.json("docs", "schema", "set", "numbers", "c~", '{"properties": {"n": {"type": "integer"}}}')
    assert (made["schemaId"], made["template_uri"]) == ("numbers", "c~")
    refused = cli.error("docs", "put", "c~/2", '{"n": "two"}', code=3)
    assert (refused["code"], refused["facts"]["errors"][0]["path"]) == ("schema-violated", "/n")
    assert cli.out("docs", "schema", "get", "numbers") == '{"properties":{"n":{"type":"integer"}}}\n'
    assert cli.json("docs", "schema", "get", "numbers")["schema"] == {"properties": {"n": {"type": "integer"}}}
    (listed,) = cli.lines("docs", "schema", "list")
    assert listed["schemaId"] == "numbers"
    assert "numbers" in cli.out("docs", "schema", "list")
    found = cli.json("docs", "schema", "check", "numbers")
    assert (found["status"], found["checked"], found["violations"]) == ("done", 1, 1)
    assert cli.out("docs", "schema", "check", "numbers").startswith('c~/1  /n  "one" is not of type "integer"\n')
    assert cli.error("docs", "schema", "set", "bad", "c~", '{"type": 5}', code=2)["code"] == "invalid-schema"
    text = cli.out("docs", "schema", "set", "numbers", "c~", "--check", stdin='{"required": ["m"]}')
    assert "looked at 1 documents, 1 do not fit numbers" in text
    cli.run("docs", "schema", "delete", "numbers")
    assert cli.error("docs", "schema", "get", "numbers", code=4)["code"] == "schema-not-found"
    cli.run("docs", "put", "c~/2", '{"n": "two"}')


def test_recovery_and_builds(cli):
    cli.run("docs", "put", "c~/1", '{"n": 1}')
    assert cli.json("docs", "recover")["failed"] == 0
    assert "0 documents failed" in cli.out("docs", "recover")
    assert cli.json("docs", "index", "build") == {"indexes": 0}
    assert "PATH goes with --spark" in cli.run("docs", "index", "build", "c~", code=2).stderr


def test_a_mistyped_folder_is_not_made(cli):
    cli.run("docs", "get", "x", code=4)
    assert not cli.folder.exists()


def test_serve_listens_at_this_machine_only(cli):
    """Another address needs tokens."""
    assert "everlog token new" in cli.error("serve", "--host", "0.0.0.0", code=2)["message"]


def test_serve_answers_until_it_is_told_to_stop(tmp_path):
    process = subprocess.Popen(
        [sys.executable, "-m", "everlog.cli", "serve", "--port", "0", "--json", "--data", str(tmp_path / "data")],
        stdout=subprocess.PIPE,
        env=os.environ,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = json.loads(process.stdout.readline())["url"]
        path = f"{url}/hyper-storage/content/d"
        assert httpx.put(path, content="1", timeout=60).status_code == 201
        cli = Cli(tmp_path / "data")
        (node,) = cli.json("status")["nodes"]
        assert (node["address"], node["state"]) == (url, "active")
        assert f"node      {url} active" in cli.out("status")
        assert httpx.get(path, timeout=60).json() == 1
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        process.stdout.close()
