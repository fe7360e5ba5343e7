"""Bodies, parameters and headers that no client of ours would send: 4xx with our error body, and nothing stored."""

from __future__ import annotations

import json
from typing import Any

import pytest

from everlog.api import Everlog
from everlog.core.events import Event
from everlog.core.json_text import MAX_DEPTH
from everlog.server.audit import TOPIC
from tests.http_support import server
from tests.support import small_config

DEEP = "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1)
DEEPER = "[" * 5000 + "]" * 5000
NO_JSON = [
    "NaN",
    "Infinity",
    "-Infinity",
    "1e999",
    DEEP,
    DEEPER,
    r'"\ud800"',
    r'{"\udc00":1}',
    "[1,]",
    "{'a':1}",
    "01",
    "",
]
BODIES = [
    "",
    "null",
    "5",
    "[]",
    "{}",
    '{"events":[]}',
    '{"events":5}',
    '{"events":[5]}',
    '{"events":[{"payload":1}],"unknown":1}',
    '{"events":[{"payload":1,"seq_nr":"1"}]}',
    '{"events":[{"payload":1,"seq_nr":1.5}]}',
    '{"events":[{"payload":1,"seq_nr":0}]}',
    '{"events":[{"payload":1,"seq_nr":9223372036854775808}]}',
    '{"events":[{"payload":1,"tags":"eu"}]}',
    '{"events":[{"payload":1,"tags":[5]}]}',
    '{"events":[{"payload":1,"tags":[""]}]}',
    r'{"events":[{"payload":1,"tags":["\ud800"]}]}',
    '{"events":[{"payload":5,"payload_type":"text"}]}',
    '{"events":[{"payload":"?","payload_type":"binary"}]}',
    '{"events":[{"payload":1,"payload_type":"xml"}]}',
    '{"events":[{"payload":1}],"headers":{"a":5}}',
    '{"events":[{"payload":1}],"headers":{"":"x"}}',
    r'{"events":[{"payload":1}],"headers":{"a\u0000b":"x"}}',
    r'{"events":[{"payload":1}],"headers":{"\ud800":"x"}}',
    '{"events":[{"payload":1}],"headers":{"journal.action":"x"}}',
    '{"events":[{"payload":1}],"expire_after":5}',
    '{"events":[{"payload":1}],"expire_after":"tomorrow"}',
    *[f'{{"events":[{{"payload":{wrong}}}]}}' for wrong in NO_JSON],
    *[f'{{"events":[{{"payload":{wrong},"payload_type":"json"}}]}}' for wrong in NO_JSON],
    *[f'{{"events":[{{"payload":1}}],"metadata":{wrong}}}' for wrong in NO_JSON],
    *[f'{{"events":[{{"payload":1}}],"header_metadata":{wrong}}}' for wrong in NO_JSON],
]
REQUESTS: list[tuple[str, str, dict[str, Any]]] = [
    *[("POST", "/journals/t/k", {"content": body}) for body in BODIES],
    *[("POST", "/journals/new/k", {"content": body}) for body in BODIES],
    ("POST", "/journals/t/k", {"content": b'{"events":[{"payload":"\xff"}]}'}),
    ("POST", "/journals/t/k", {"content": '{"events":[{"payload":1}]}', "headers": {"Append-Id": "nonsense"}}),
    ("POST", "/journals/t/%ED%A0%80", {"content": '{"events":[{"payload":1}]}'}),
    ("POST", "/journals/a%20b/k", {"content": '{"events":[{"payload":1}]}'}),
    ("POST", f"/journals/t/{'x' * 5000}", {"content": '{"events":[{"payload":1}]}'}),
    *[
        ("POST", "/journals/t/k/mark", {"content": body})
        for body in ('{"id":5}', '{"id":""}', r'{"id":"\ud800"}', "[]", "NaN")
    ],
    ("POST", "/journals/t/k/mark", {"content": json.dumps({"id": "x" * 5000})}),
    *[("PUT", "/journals/t/k/snapshots/1", {"content": f'{{"payload":{wrong}}}'}) for wrong in NO_JSON],
    *[("PUT", "/journals/t/k/snapshots/1", {"content": f'{{"payload":1,"metadata":{wrong}}}'}) for wrong in NO_JSON],
    ("PUT", "/journals/t/k/snapshots/0", {"content": '{"payload":1}'}),
    ("GET", "/journals/t/k", {"params": {"from": "x"}}),
    ("GET", "/journals/t/k", {"params": {"from": "-1"}}),
    ("GET", "/journals/t/k", {"params": {"limit": "0"}}),
    ("GET", "/journals/t/k", {"params": {"after": "nonsense"}}),
    ("GET", "/journals/t/k", {"params": {"pin": "nonsense"}}),
    ("GET", "/journals/t/k", {"params": {"pin": "9" * 5000 + "-0-x"}}),
    ("POST", "/journals/t/k", {"content": '{"events":[{"payload":1}]}', "headers": {"If-Match": '"nonsense"'}}),
    ("GET", "/journals/t/k", {"params": {"after": "t:0:" + "9" * 5000}}),
    ("GET", "/journals/t/k", {"params": {"after": f"t:0:{2**63}"}}),
    ("DELETE", "/journals/t/k", {"params": {"to": "0"}}),
    ("DELETE", "/journals/t/k/snapshots", {"params": {"min_seq_nr": "0"}}),
    ("GET", "/tags/eu", {"params": {"after": "nonsense"}}),
    ("GET", "/tags/eu", {"params": {"since": "yesterday"}}),
    ("GET", "/tags/eu", {"params": {"position": "5"}}),
    ("GET", "/tags/a%00b", {}),
    ("GET", "/slices/9/3", {}),
    ("GET", "/projections/%20", {}),
    ("POST", "/projections/p/k/pause", {"content": '{"wait":NaN}'}),
    ("POST", "/projections/p/k/pause", {"content": '{"wait":-1}'}),
    ("POST", "/projections/p/k/skip", {"content": '{"offset":5}'}),
    ("POST", "/projections/p/k/skip", {"content": r'{"offset":"\ud800"}'}),
    ("PUT", "/projections/p/k/offset", {"content": '{"offset":NaN}'}),
    ("PUT", "/projections/p/k/offset", {"content": f'{{"offset":{DEEPER}}}'}),
    ("GET", "/status", {"params": {"after": "5"}}),
]


async def ends(log: Everlog) -> list[int]:
    """Of all topics but that of operations: a refusal for want of a scope is noted there."""
    return [partition.end for partition in (await log.status()).partitions if partition.topic != TOPIC]


async def test_a_wrong_request_is_refused_and_stores_nothing(tmp_path) -> None:
    async with server(small_config(tmp_path)) as (log, http):
        await log.journal("t").append("k", [Event(1), Event(2)])
        before = [event async for event in log.journal("t").read("k")]
        records = await ends(log)
        wrong_answers = []
        for method, path, options in REQUESTS:
            answer = await http.request(method, path, **options)
            body = answer.json()
            if not 400 <= answer.status_code < 500 or not body["code"] or not body["description"]:
                wrong_answers.append((method, path[:40], ascii(options)[:100], answer.status_code, ascii(body)[:200]))
        assert wrong_answers == []
        assert {*await log.topics()} - {TOPIC} == {"t"}
        assert await ends(log) == records
        assert [event async for event in log.journal("t").read("k")] == before
        assert await log.journal("t").snapshots.list("k") == []


@pytest.mark.parametrize("levels", [1, MAX_DEPTH])
async def test_json_of_a_body_is_kept_to_the_letter(tmp_path, levels) -> None:
    """No number of a payload or of metadata changes on its way in."""
    text = "[" * (levels - 1) + '{"a": 1.10, "b": 12345678901234567890123, "c": "\\u00e4"}' + "]" * (levels - 1)
    async with server(small_config(tmp_path)) as (log, http):
        body = f'{{"events":[{{"payload":{text}}}],"metadata":{text},"header_metadata":{text}}}'
        assert (await http.post("/journals/t/k", content=body)).status_code == 201
        (event,) = [event async for event in log.journal("t").read("k")]
        assert event.data == text
        assert event.metadata_json == f'{{"header":{{"data":{text}}},"payload":{{"data":{text}}}}}'
        assert (
            await http.put("/journals/t/k/snapshots/1", content=f'{{"payload":{text},"metadata":{text}}}')
        ).status_code
        (kept,) = await log.journal("t").snapshots.list("k")
        assert (kept.data, kept.metadata_json) == (text, text)
        shown = (await http.get("/journals/t/k")).text
        assert shown.count(text) == 3
