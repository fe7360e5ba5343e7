"""Numbers: what is accepted comes back digit by digit on every way out; what is not is refused and stores nothing."""

from __future__ import annotations

import json
import random
import re
from collections.abc import AsyncIterator
from decimal import Decimal
from typing import Any, NamedTuple

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

import everlog
from everlog.api import Everlog
from everlog.client import connect
from everlog.console.server import serving
from everlog.documents.bodies import body_of, decode_body, encode_body, plain_body
from everlog.documents.filters.evaluation import make_matcher
from everlog.documents.filters.parser import parse_filter
from everlog.documents.indexes import IndexNew, IndexSortItem, IndexStatus
from everlog.errors import InvalidDocument
from tests.support import small_config
from tests.waiting import until

ODD = ["0", "-0", "-0.0", "0.10", "1.50", "1e5", "1E+5", "1e400", "-1e-400", "1e9999", "0.1000000000000000000001"]
ODD += ["5e-324", "1.7976931348623157e308", "1.7976931348623159e308", "9007199254740993", "9007199254740993.0", "1e22"]
ODD += ["1e23", "0." + "123456789" * 40, "9" * 400, "9." + "9" * 393 + "e9999", "0." + "0" * 500 + "1"]
REFUSED = ["NaN", "Infinity", "-Infinity", "1e10001", "1e-10001", "01", "+1", ".5", "1.", "0x10", "1_0", "1e"]
REFUSED += ["9" * 401, "0." + "9" * 401, "1" + "0" * 900 + ".5"]


def random_number(source: random.Random) -> str:
    """Any JSON number, spelled in any way."""
    whole = str(source.choice([0, source.randint(1, 9), source.randint(1, 10 ** source.randint(1, 60))]))
    fraction = "." + str(source.randint(0, 10 ** source.randint(1, 40))) if source.random() < 0.5 else ""
    sign = source.choice(["", "+", "-"])
    power = f"{source.choice('eE')}{sign}{source.randint(0, 500)}" if source.random() < 0.4 else ""
    return source.choice(["", "-"]) + whole + fraction + power


class Server(NamedTuple):
    log: Everlog
    remote: Everlog
    http: httpx.AsyncClient


@pytest.fixture
async def server(tmp_path) -> AsyncIterator[Server]:
    async with (
        connect(small_config(tmp_path / "data")) as log,
        serving(log, host="127.0.0.1", port=0) as address,
        connect(address) as remote,
        httpx.AsyncClient(base_url=address, timeout=60) as http,
    ):
        yield Server(log, remote, http)


def texts_of(answer: str) -> list[str]:
    """The numbers of the list `n`, as they are spelled; the first such list counts."""
    found = re.search(r'"n":\s*\[([^\]]*)\]', answer)
    assert found is not None, answer[:200]
    return [one.strip() for one in found[1].split(",")]


def is_exactly(value: Any, text: str) -> bool:
    """Whether a Python number is this one: a float by its repr."""
    if isinstance(value, float):
        return Decimal(repr(value)) == Decimal(text)
    return Decimal(value) == Decimal(text)


async def test_every_number_comes_back_on_every_way_out(server: Server) -> None:
    source = random.Random(17)
    sent = ODD + [random_number(source) for _ in range(300)]
    body = '{"n": [' + ",".join(sent) + "]}"
    c = "/hyper-storage/content/"
    for path in ("d", "c~/x"):
        assert (await server.http.put(c + path, content=body)).status_code == 201
        assert (await server.http.patch(c + path, content='{"m": 1e400}')).status_code == 200
    await server.log.documents.put_view("v~", "c~/{*}")
    await server.log.documents.create_index("c~", IndexNew("i", (IndexSortItem("m"),), "m > 1"))
    for docs in (server.log.documents, server.remote.documents):
        await until(lambda docs=docs: _shown(docs))
    ways = [
        "d",
        "d?history",
        "d?at=1",
        "d?diff=1,2",
        "c~",
        "c~?filter=m > 1e399&sort=m",
        "c~?history",
        "c~?at=1",
        "c~/x",
        "v~",
    ]
    answers = [await server.http.get(c + way) for way in ways]
    answers.append(await server.http.get("/journals/documents/d"))
    answers += [await server.http.get("/console/documents.json", params={"path": path}) for path in ("d", "c~")]
    expected = [encode_body(decode_body(text)) for text in sent]
    for answer in answers:
        assert answer.status_code == 200, (answer.url, answer.text[:300])
        if "diff" in str(answer.url):
            assert answer.text == '{"m":1E+400}'
            continue
        found = texts_of(answer.text)
        assert found == expected, answer.url
        assert all(Decimal(one) == Decimal(text) for one, text in zip(found, sent, strict=True))
    for text, found in zip(sent, expected, strict=True):
        if text == str(Decimal(text)) and text != "-0":
            assert found == text  # a canonical spelling is not touched


async def _shown(docs: Any) -> bool:
    ready = (await docs.index("c~", "i")).status is IndexStatus.READY
    return ready and len((await docs.list("v~")).elements) == 1


async def test_python_gets_floats_where_they_are_exact(server: Server) -> None:
    sent = [*ODD, "2.5", "0.1", "-1e-7"]
    await server.http.put("/hyper-storage/content/c~/x", content='{"n": [' + ",".join(sent) + "]}")
    await server.http.put("/hyper-storage/content/c~/x", content='{"m": 0, "n": [' + ",".join(sent) + "]}")
    for docs in (server.log.documents, server.remote.documents):
        history = [one async for one in docs.history("c~")]
        bodies = [(await docs.get("c~/x")).body, (await docs.list("c~", filter="m = 0")).elements[0], history[0].body]
        bodies += [await docs.at("c~/x", 1), (await docs.at("c~", 1))[0]]
        for body in bodies:
            assert all(is_exactly(value, text) for value, text in zip(body["n"], sent, strict=True))
            assert [type(value) for value in body["n"][-3:]] == [float, float, float]
            assert type(body["n"][sent.index("1e400")]) is Decimal
        assert await docs.diff("c~/x", 1, 2) == {"m": 0}
        exact = [history[0].exact, await docs.at("c~/x", 1, exact=True), (await docs.get("c~/x")).exact]
        assert all(type(body["n"][-1]) is Decimal for body in exact)
        await docs.put("again", bodies[0])
        assert (await docs.get("again")).body == bodies[0]
    events = [one async for one in server.log.journal("documents").read("again")]
    assert events[0].payload["body"]["n"][sent.index("1e400")] == Decimal("1e400")


async def test_what_is_no_number_is_refused_and_stores_nothing(server: Server, tmp_path) -> None:
    for text in REFUSED:
        for path in ("d", "c~/x"):
            answer = await server.http.put(f"/hyper-storage/content/{path}", content=f'{{"a": [{text}]}}')
            assert (answer.status_code, answer.json()["code"]) == (400, "invalid-json"), text
    for value in (float("nan"), float("inf"), -float("inf"), Decimal("NaN"), Decimal("Infinity"), 10**401, 1e308 * 10):
        for body in (value, [value], {"a": {"b": (value,)}}):
            for docs in (server.log.documents, server.remote.documents):
                with pytest.raises(InvalidDocument):
                    await docs.put("d", body)
    for path in ("d", "c~"):
        assert (await server.http.get(f"/hyper-storage/content/{path}")).status_code == 404


def test_without_await(tmp_path) -> None:
    with everlog.sync.connect(small_config(tmp_path / "data")) as log:
        log.documents.put("d", {"n": [Decimal("1e400"), 0.1]})
        assert log.documents.get("d").body == {"n": [Decimal("1e400"), 0.1]}
        assert log.documents.at("d", 1) == {"n": [Decimal("1e400"), 0.1]}


numbers = st.builds(
    "{}{}{}".format,
    st.integers(-(10**60), 10**60) | st.integers(-10, 10),
    st.just("") | st.integers(0, 10**40).map(".{}".format),
    st.just("") | st.integers(-400, 400).map("e{}".format) | st.integers(0, 400).map("E+{}".format),
)


@given(numbers)
def test_a_number_goes_in_and_out(text):
    """As it is stored, for Python, and from there in again; and a filter finds it."""
    stored = encode_body(decode_body(text))
    assert Decimal(stored) == Decimal(text)
    assert encode_body(decode_body(stored)) == stored
    assert json.loads(stored, parse_int=Decimal, parse_float=Decimal) == Decimal(text)
    value = plain_body(stored)
    assert is_exactly(value, text)
    assert isinstance(value, Decimal) is not any(_holds(kind, stored) for kind in (int, float))
    assert Decimal(encode_body(body_of(value))) == Decimal(text)
    assert make_matcher(parse_filter(f"a = {text}" if value >= 0 else f"a = ({text})"))({"a": decode_body(text)}, 0)


def _holds(kind: type, text: str) -> bool:
    if kind is int:
        return text.lstrip("-").isdecimal()
    return Decimal(repr(float(text))) == Decimal(text)
