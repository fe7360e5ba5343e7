"""Tokens: what is kept of them, how they are compared, and the commands around them."""

from __future__ import annotations

import stat
import threading
import tomllib
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from everlog.config import Config, TokenConfig
from everlog.errors import InvalidConfig, InvalidInput
from everlog.server.security.sessions import MAX_SESSIONS, Sessions
from everlog.server.security.tokens import TokenFile, Tokens, hash_of, make_token
from tests.cli_support import Cli
from tests.support import ManualClock


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path / "data")


def test_what_is_kept_does_not_hold_the_token(tmp_path):
    file = TokenFile(tmp_path / "folder" / "tokens.json")
    token, kept = make_token("ci", ["read", "read", "write"], 7)
    file.add(kept)
    text = file.path.read_text()
    assert token not in text
    assert token.rsplit("_", 1)[1] not in text
    assert stat.S_IMODE(file.path.stat().st_mode) == 0o600
    assert file.read() == [TokenConfig(kept.id, hash_of(token), "ci", ("read", "write"), 7)]
    assert Tokens([], file.path).find(token) == kept


def test_no_two_tokens_are_alike():
    made = [make_token("x", ["read"], 0) for _ in range(100)]
    assert len({token for token, _ in made}) == len({kept.id for _, kept in made}) == 100


@given(st.text(max_size=80))
def test_nothing_else_is_a_token(text):
    token, kept = make_token("x", ["admin"], 0)
    known = Tokens([kept], None)
    assert known.find(text) is None
    assert known.find(token + text) is (None if text else kept) or (not text and known.find(token) == kept)
    assert known.find(f"evl_{kept.id}_{text}") is None


def test_several_commands_at_once_lose_nothing(tmp_path):
    file = TokenFile(tmp_path / "tokens.json")
    threads = [threading.Thread(target=lambda: file.add(make_token("x", ["read"], 0)[1])) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(file.read()) == 20


def test_the_file_is_read_again_when_it_changes(tmp_path):
    file = TokenFile(tmp_path / "tokens.json")
    known = Tokens([], file.path)
    assert not known.needed
    token, kept = make_token("x", ["read"], 0)
    file.add(kept)
    assert known.needed
    assert known.find(token) == kept
    file.revoke(kept.id)
    assert known.find(token) is None
    assert known.get(kept.id) is None
    assert known.needed, "once there were tokens they stay necessary"
    file.path.unlink()
    assert known.needed


def test_a_broken_file(tmp_path):
    path = tmp_path / "tokens.json"
    path.write_text("{")
    with pytest.raises(InvalidConfig):
        Tokens([], path)
    path.unlink()
    known = Tokens([], path)
    path.write_text("nonsense")
    assert known.needed, "what cannot be read lets nobody in"


def test_sessions_end():
    clock = ManualClock()
    sessions = Sessions(clock, hours=1)
    cookie, session = sessions.begin("t")
    assert sessions.find(cookie) == session
    assert sessions.find(cookie + "x") is None
    assert session.csrf not in cookie
    clock.advance(3600)
    assert sessions.find(cookie) is None
    cookies = [sessions.begin("t")[0] for _ in range(MAX_SESSIONS + 1)]
    assert sessions.find(cookies[0]) is None
    assert sessions.find(cookies[1]) is not None
    sessions.end(cookies[1])
    assert sessions.find(cookies[1]) is None


def test_commands(cli):
    made = cli.json("token", "new", "ci")
    assert (made["name"], made["scopes"]) == ("ci", ["read"])
    token = cli.out("token", "new", "app", "--scope", "read", "--scope", "write").strip()
    found = cli.lines("token", "list")
    assert [(one["name"], one["scopes"], one["in"]) for one in found] == [
        ("ci", ["read"], "file"),
        ("app", ["read", "write"], "file"),
    ]
    assert token.split("_")[1] == found[1]["id"]
    assert token not in cli.out("token", "list")
    assert cli.json("token", "revoke", "ci") == {"id": made["id"], "name": "ci"}
    assert "revoked" in cli.out("token", "revoke", found[1]["id"])
    assert "no tokens" in cli.out("token", "list")
    assert cli.error("token", "revoke", "ci", code=2)["type"] == "InvalidInput"
    cli.run("token", "new", "x", "--scope", "root", code=2)


def test_two_of_one_name(cli):
    for _ in range(2):
        cli.run("token", "new", "same")
    message = cli.error("token", "revoke", "same", code=2)["message"]
    assert all(one["id"] in message for one in cli.lines("token", "list"))


def test_an_entry_for_the_configuration(cli):
    made = cli.json("token", "new", 'a "b"', "--scope", "admin", "--toml")
    assert not (cli.folder / "tokens.json").exists()
    config = msgspec.convert(tomllib.loads(made["toml"]), Config)
    (kept,) = config.server.tokens
    assert Tokens(config.server.tokens, None).find(made["token"]) == kept
    assert (kept.name, kept.scopes) == ('a "b"', ("admin",))


def test_names_and_scopes_are_checked():
    with pytest.raises(InvalidInput):
        make_token("x", [], 0)
    for name in ("x" * 201, "a\nb"):
        with pytest.raises(InvalidInput):
            make_token(name, ["read"], 0)
