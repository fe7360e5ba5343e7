"""What a hostile schema or body can do: be refused. The server's other work goes on meanwhile."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest

from everlog.api import Everlog
from everlog.client import connect
from everlog.documents.schemas import checks
from everlog.documents.schemas import examiner as examiners
from everlog.documents.schemas.checks import SchemaChecks
from everlog.documents.schemas.definition import checked_text
from everlog.documents.schemas.examiner import Examiner
from everlog.documents.schemas.model import SchemaCheck
from everlog.errors import Busy, InvalidDocument, SchemaViolated
from everlog.runtime.clock import SystemClock
from tests.support import small_config
from tests.waiting import until

# In 50 ms or a second none of these is done; some would take hours.
DEEP: dict[str, Any] = {"properties": {"x": {"type": "integer"}}}
for _ in range(18):
    DEEP = {"allOf": [DEEP, {"properties": {"y": {}}}], "unevaluatedProperties": {"type": "object"}}
HOSTILE: dict[str, tuple[Any, Any]] = {
    "equal-hashes": ({"uniqueItems": True}, [10**30 + number for number in range(25_000)]),
    "nested-unevaluated": (DEEP, {f"k{number}": {} for number in range(1000)}),
    "slow-automaton": ({"pattern": "(a|b)*a(a|b){800}c"}, "".join(random.Random(1).choices("ab", k=600_000)) + "c"),
    "large-enum": ({"items": {"enum": [{"a": number} for number in range(4000)]}}, [{"a": 3999}] * 60_000),
}


@pytest.fixture
async def log(tmp_path) -> AsyncIterator[Everlog]:
    async with connect(small_config(tmp_path / "data")) as opened:
        yield opened


@pytest.fixture
async def examiner() -> AsyncIterator[Examiner]:
    made = Examiner(SystemClock())
    yield made
    await made.close()


@pytest.mark.parametrize("name", HOSTILE)
async def test_what_takes_too_long_is_refused_while_others_go_on(log, name):
    """Writes under another schema are answered all the time."""
    schema, body = HOSTILE[name]
    docs = log.documents
    await docs.put_schema("hostile", "h/{*}", schema)
    await docs.put_schema("good", "g/{*}", {"type": "integer"})
    await docs.put("g/0", 0)
    writing = asyncio.create_task(docs.put("h/1", body))
    turns = 0
    while not writing.done():
        await docs.put("g/1", turns)
        turns += 1
    with pytest.raises(InvalidDocument) as refused:
        await writing
    assert refused.value.code == "schema-too-costly"
    assert turns > 10
    with pytest.raises(SchemaViolated):
        await docs.put("g/1", "text")
    await docs.put("h/1", 1)  # the process is there again


async def test_a_small_hostile_body_holds_up_no_other_schema(examiner, monkeypatch):
    """After its first body, a schema that takes long is no longer given to the quick process."""
    schema, body = json.dumps(DEEP), json.dumps({f"k{number}": {} for number in range(300)})
    with pytest.raises(InvalidDocument):
        await examiner.examine("slow", schema, body)
    asked = []
    ask = examiner._quick.ask
    monkeypatch.setattr(examiner._quick, "ask", lambda *given: asked.append(given[0]) or ask(*given))
    with pytest.raises(InvalidDocument):
        await examiner.examine("slow", schema, body)
    assert (await examiner.examine("fine", "true", body)).violations is None
    assert asked == ["fine"]


async def test_a_process_that_is_killed_is_started_again(examiner):
    assert (await examiner.examine("v", '{"type": "object"}', "{}")).violations is None
    os.kill(examiner._quick._child.pid, signal.SIGKILL)
    found = await examiner.examine("v", '{"type": "object"}', "[]")
    assert [one.schema_path for one in found.violations] == ["/type"]


async def test_a_refusal_with_many_places_has_twenty(log):
    docs = log.documents
    await docs.put_schema("numbers", "n/{*}", {"items": {"type": "integer"}})
    with pytest.raises(SchemaViolated) as small:
        await docs.put("n/1", ["x" * 1000] * 100)
    assert [error["path"] for error in small.value.errors] == [f"/{number}" for number in range(20)]
    assert max(len(error["message"]) for error in small.value.errors) < 320
    with pytest.raises(SchemaViolated) as large:
        await docs.put("n/1", ["x"] * 250_000)
    assert large.value.errors[0]["path"] == "/0"


async def test_no_more_wait_than_may(examiner, monkeypatch):
    monkeypatch.setattr(examiners, "MAX_WAITING", 3)
    asking = [asyncio.create_task(examiner.examine("v", "true", "1")) for _ in range(6)]
    found = await asyncio.gather(*asking, return_exceptions=True)
    assert sum(isinstance(one, Busy) for one in found) == 3
    assert (await examiner.examine("v", "true", "1")).violations is None  # those that gave up are not counted for ever


async def test_a_caller_that_gives_up_leaves_no_trace(examiner):
    asking = asyncio.create_task(examiner.examine("v", "true", "1"))
    await asyncio.sleep(0)
    asking.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asking
    assert (await examiner.examine("w", "false", "1")).violations


async def test_memory_is_limited(examiner):
    """An enum of enums of errors: what would take gigabytes ends the process, not the server."""
    schema = json.dumps({"anyOf": [{"allOf": [{"minItems": 10**9}] * 1500}]})
    body = json.dumps(["x" * 100] * 2000)
    found = await examiner.examine("v", schema, body)
    assert found.violations is not None  # that it does not fit was said before the places were looked for


@pytest.mark.parametrize(
    ("schema", "code"),
    [
        ({"$defs": {f"d{number}": {"$ref": "#"} for number in range(501)}}, "schema-too-large"),
        ({"properties": {f"p{number}": {"pattern": "a"} for number in range(101)}}, "schema-too-large"),
        ({"items": [{"pattern": "x" * 501}]}, "invalid-pattern"),
        ({"$ref": ""}, "remote-reference"),
        ({"$ref": "other.json#/a"}, "remote-reference"),
        ({"$dynamicRef": "https://example.com/#x"}, "remote-reference"),
        ({"$schema": 5}, "unknown-draft"),
    ],
)
def test_limits_of_a_schema(schema, code):
    with pytest.raises(InvalidDocument) as refused:
        checked_text(schema)
    assert refused.value.code == code


def test_depth_of_a_schema():
    schema: Any = {}
    for _ in range(70):
        schema = {"not": schema}
    with pytest.raises(InvalidDocument) as refused:
        checked_text(schema)
    assert refused.value.code == "schema-too-deep"


def test_values_are_no_keywords():
    """What a property or a constant is called is not looked at."""
    checked_text({"properties": {"$ref": {"type": "string"}}, "enum": [{"$ref": "http://x"}], "const": {"a": ["$ref"]}})
    for draft in ("http://json-schema.org/draft-07/schema#", "https://json-schema.org/draft/2019-09/schema"):
        checked_text({"$schema": draft, "$ref": "#/definitions/a", "definitions": {"a": {}}})


async def test_nothing_is_fetched(examiner):
    """Even if a reference got past the door: the validator has none."""
    with pytest.raises(InvalidDocument) as refused:
        await examiner.try_schema('{"$ref": "file:///etc/hostname"}')
    assert "Retrieval is disabled" in str(refused.value)


# Checks and servers that die


async def test_a_check_goes_on_after_a_stop(tmp_path, monkeypatch):
    """What was looked at is not looked at again; the row says how many servers worked on it."""
    monkeypatch.setattr(checks, "PAGE", 4)
    config = small_config(tmp_path / "data")
    async with connect(config) as log:
        for number in range(30):
            await log.documents.put(f"c~/{number:02}", {"n": number if number % 10 else "ten"})
        await log.documents.put_schema("n", "c~", {"properties": {"n": {"type": "integer"}}})
        parts = await log.documents.open()
        await log.documents.check_schema("n")
        async with asyncio.timeout(30):
            while (await parts.store.schema_check("n")).check.released:  # noqa: ASYNC110
                await asyncio.sleep(0.01)
        await parts.schemas.checks.close()
        stored = await parts.store.schema_check("n")
        assert stored.check.released
        halfway = {"cursor": ("14",), "checked": 15, "violations": 2, "problems": (), "released": True}
        assert await parts.store.save_schema_check(
            msgspec.structs.replace(stored.check, **halfway), stored.beat + 1, stored.beat
        )
    async with connect(config) as log:
        await (await log.documents.open()).schemas.checks.resume()
        await until(lambda: ended(log), seconds=30)
        found = await log.documents.schema_check("n")
        assert (found.state, found.checked, found.violations) == ("done", 30, 3)
        assert [problem.path for problem in found.problems] == ["c~/20"]
        assert found.runs == 2


async def ended(log: Everlog) -> bool:
    return (await log.documents.schema_check("n")).ended


class Later(SystemClock):
    """Some seconds ahead, as a process sees it that has waited for as long."""

    ahead = 0.0

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def test_a_check_of_a_dead_process_is_taken_over_once_it_has_not_beaten_for_a_lease(log):
    await log.documents.put("c~/1", {})
    schema = await log.documents.put_schema("n", "c~", {"required": ["n"]})
    parts = await log.documents.open()
    dead = SchemaCheck("c-1", "n", schema.version, checked=7, started_ms=schema.modified_ms, runs=1)
    assert await parts.store.save_schema_check(dead, 1, None)
    clock = Later()
    other = SchemaChecks(parts.store, parts.schemas.book, clock=clock)
    assert await other.resume() == 0
    clock.ahead = 14.0
    assert await other.resume() == 0
    clock.ahead = 16.0
    assert await other.resume() == 1
    await until(lambda: ended(log), seconds=30)
    found = await log.documents.schema_check("n")
    assert (found.check_id, found.state, found.checked, found.violations, found.runs) == ("c-1", "done", 1, 1, 2)
    await other.close()


async def test_of_two_that_work_on_a_check_one_goes_on(log):
    for number in range(5):
        await log.documents.put(f"c~/{number}", {})
    schema = await log.documents.put_schema("n", "c~", {"required": ["n"]})
    parts = await log.documents.open()
    left = SchemaCheck("c-1", "n", schema.version, started_ms=schema.modified_ms, released=True)
    assert await parts.store.save_schema_check(left, 1, None)
    several = [SchemaChecks(parts.store, parts.schemas.book, clock=SystemClock()) for _ in range(3)]
    await asyncio.gather(*[one.resume() for one in several])
    await until(lambda: ended(log), seconds=30)
    found = await log.documents.schema_check("n")
    assert (found.state, found.checked, found.violations, found.runs) == ("done", 5, 5, 1)
    for one in several:
        await one.close()


async def test_a_check_of_a_schema_that_changes_says_so(log):
    await log.documents.put("c~/1", {})
    old = await log.documents.put_schema("n", "c~", {"required": ["n"]})
    await log.documents.put_schema("n", "c~", {"required": ["m"]})
    parts = await log.documents.open()
    left = SchemaCheck("c-1", "n", old.version, started_ms=old.modified_ms, released=True)
    assert await parts.store.save_schema_check(left, 1, None)
    await parts.schemas.checks.resume()
    await until(lambda: ended(log), seconds=30)
    found = await log.documents.schema_check("n")
    assert (found.state, found.reason) == ("failed", "the schema was changed meanwhile: check it again")
    again = await log.documents.check_schema("n")
    assert again.check_id != found.check_id
    await until(lambda: ended(log), seconds=30)
    assert (await log.documents.schema_check("n")).state == "done"


async def test_another_server_hears_of_a_schema_within_a_second(tmp_path):
    config = small_config(tmp_path / "data")
    async with connect(config) as one, connect(config) as other:
        await other.documents.put("c~/1", {})
        await one.documents.put_schema("n", "c~", {"required": ["n"]})

        async def heard() -> bool:
            try:
                await other.documents.put("c~/1", {})
            except SchemaViolated:
                return True
            return False

        await until(heard, seconds=30)
