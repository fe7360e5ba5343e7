"""Random requests to a server that is killed now and then, beside a naive model: every answer must be the model's.

Requests come one after the other, so the model knows every answer. A write whose server is killed is sent again with
its message id until there is an answer: it must have happened once; so it is with an atomic batch, as a whole, and with
many lines in one request, each by itself.
"""

from __future__ import annotations

import asyncio
import copy
import json
import random
from collections import Counter
from decimal import Decimal
from typing import Any
from urllib.parse import urljoin

import httpx

from everlog.documents.bodies import decode_body, encode_body
from everlog.documents.filters.tree import Binary, Field, FilterNode, FunctionCall, Literal, Unary, text_of
from tests.documents.node_support import C, Fleet, Server
from tests.models.document_filter import naive_match, naive_sorted
from tests.models.document_model import NaiveDocuments, Reply, replay, split
from tests.waiting import until

DOCUMENTS = ("shop/settings", "people/ann", "d")
COLLECTIONS = ("c~", "shop/orders~")
VIEWED, VIEW = "c~", "v~"
SCALARS = (None, True, False, 0, 1, 2, -3, Decimal("2.5"), Decimal("1e400"), "", "x", "y", "2", "é\u2028")
ITEMS = ("1", "2", "3", "a-b", "x" * 60)
MAX_KILL_DELAY_S = 0.02


class DocumentSteps:
    """One run: a server, a model, and dice."""

    def __init__(self, nodes: Fleet, seed: int) -> None:
        self.nodes = nodes
        self.chance = random.Random(seed)
        self.model = NaiveDocuments()
        self.view_filter: FilterNode | None = None
        self.has_view = False
        self.generated = ""
        self.done: Counter[str] = Counter()
        self.numbers = 0

    async def run(self, steps: int, *, kills: int) -> None:
        """`kills` writes, evenly spread, lose their server."""
        self.server = await self._start()
        fatal = {round((number + 0.5) * steps / kills) for number in range(kills)}
        limits = httpx.Limits(keepalive_expiry=2.0)
        async with httpx.AsyncClient(timeout=60, limits=limits) as self.http:
            for number in range(steps):
                if number in fatal:
                    await self.chance.choice([self.write, self.batch, self.bulk])(killed=True)
                else:
                    await self.step()
            await self.check_everything()

    async def _start(self) -> Server:
        (server,) = await asyncio.to_thread(self.nodes.start)
        return server

    async def step(self) -> None:
        """The more usual kinds come more often."""
        kinds = {
            self.write: 60,
            self.batch: 6,
            self.bulk: 3,
            self.feed: 2,
            self.get: 10,
            self.page: 20,
            self.index: 3,
            self.past: 4,
            self.view: 1,
            self.check_view: 2,
        }
        (kind,) = self.chance.choices(list(kinds), list(kinds.values()))
        self.done[kind.__name__] += 1
        await kind()

    async def ask(self, method: str, path: str, **options: Any) -> httpx.Response:
        return await self.http.request(method, self.server.url + path, **options)

    # Writes

    async def write(self, *, killed: bool = False) -> None:
        uri, item, method, body = self._wanted()
        headers, conditions = self._conditions(uri, "new" if method == "post" else item)
        self.numbers += 1
        remembered = killed or self.chance.random() < 0.3
        if remembered:
            headers["Idempotency-Key"] = f"m-{self.numbers}"
        if self.chance.random() < 0.1:
            headers["Hyper-Storage-Wait"] = "full"
        path = C + (f"{uri}/{item}" if item else uri)
        content = None if body is None else encode_body(body)
        answer = await self._send(method, path, content, headers, killed=killed)
        where = self._place(answer, uri, item, method)
        expected = self.model.write("put" if method == "post" else method, *where, body, **conditions)
        self.compare(answer, expected, f"{method} {path} {content} {headers}")
        if remembered and expected.revision is not None and self.chance.random() < 0.3:
            again = await self.ask(method, path, content=content, headers=headers)
            self.compare(again, expected, f"again: {method} {path}")
            if method in ("put", "post") and not (uri.endswith("~") and method == "put" and not item):
                other = await self.ask(method, path, content='{"another":1}', headers=headers)
                assert other.status_code == 422, other.text

    async def batch(self, *, killed: bool = False) -> None:
        """Several writes of one document or collection: all of them, or the error of the first that is refused."""
        uri = self.chance.choice(COLLECTIONS) if self.chance.random() < 0.9 else self.chance.choice(DOCUMENTS)
        operations: list[dict[str, Any]] = []
        conditions: list[dict[str, Any]] = []
        for _ in range(self.chance.randrange(1, 5)):
            item, method = "", self.chance.choice(["put", "patch"])
            if uri in COLLECTIONS:
                known = sorted(self.model.rows.get(uri, {}))
                item = self.chance.choice(known) if known and self.chance.random() < 0.8 else self.chance.choice(ITEMS)
                method = self.chance.choices(["put", "patch", "delete", "post"], [5, 3, 1, 2])[0]
            operation, condition = self._operation(uri, "" if method == "post" else item, method)
            operations.append({**operation, **({"id": operation.pop("path")[len(uri) + 1 :]} if item else {})})
            operations[-1].pop("path", None)
            conditions.append(condition)
        self.numbers += 1
        path, content = f"/hyper-storage/batches/{uri}", encode_body(operations)
        headers = {"Idempotency-Key": f"m-{self.numbers}"} if killed or self.chance.random() < 0.3 else {}
        answer = await self._send("POST", path, content, headers, killed=killed)
        before = copy.deepcopy(self.model)
        results = answer.json().get("results", [])
        for number, (operation, condition) in enumerate(zip(operations, conditions, strict=True)):
            item = split(results[number]["path"])[1] if results else operation.get("id", "")
            if operation["method"] == "post":
                assert item not in self.model.rows.get(uri, {})
            reply = self._apply(operation, uri, item or ("new" if operation["method"] == "post" else ""), condition)
            if reply.status >= 400:
                found = (answer.status_code, answer.json().get("extra", {}).get("operation"))
                assert found == (reply.status, number), (path, content, answer.text)
                self.model = before
                return
            if results:
                self._compare_result(results[number], reply, uri, item, operation["method"])
        assert answer.status_code == 200, (path, content, answer.text)
        if headers:
            again = await self.ask("POST", path, content=content, headers=headers)
            assert (again.status_code, again.content) == (200, answer.content)

    async def bulk(self, *, killed: bool = False) -> None:
        """Many lines of several documents: each has the answer that it would have had alone.

        Those of a server that is killed are such that none is refused: a refusal is not remembered, and what comes
        behind it may be there already when it is asked for again.
        """
        lines: list[dict[str, Any]] = []
        conditions: list[dict[str, Any]] = []
        for _ in range(self.chance.randrange(1, 30)):
            uri, item, method, _ = self._wanted()
            if killed:
                method = "put" if item or uri in DOCUMENTS else "post"
            operation, condition = self._operation(uri, item, method, conditional=not killed)
            self.numbers += 1
            if killed or self.chance.random() < 0.2:
                operation["idempotencyKey"] = f"m-{self.numbers}"
            lines.append(operation)
            conditions.append(condition)
        content = "".join([encode_body(line) + "\n" for line in lines])
        answer = await self._send("POST", "/hyper-storage/_bulk", content, {}, killed=killed)
        assert answer.status_code == 200, answer.text
        found = [json.loads(line) for line in answer.text.splitlines()]
        assert [one["line"] for one in found] == list(range(1, len(lines) + 1)), answer.text
        for line, condition, one in zip(lines, conditions, found, strict=True):
            uri, item = split(line["path"])
            if line["method"] == "post":
                item = split(one["path"])[1] if one["status"] == 201 else "new"
            reply = self._apply(line, uri, item, condition)
            assert one["status"] == reply.status, (line, one, reply)
            if reply.status < 400:
                self._compare_result(one, reply, uri, item, line["method"])

    def _operation(
        self, uri: str, item: str, method: str, *, conditional: bool = True
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """A write as one of several, and its conditions for the model."""
        headers, condition = self._conditions(uri, "new" if method == "post" else item) if conditional else ({}, {})
        names = {"If-Match": "ifMatch", "If-None-Match": "ifNoneMatch"}
        made: dict[str, Any] = {"method": method, "path": f"{uri}/{item}" if item else uri}
        if method != "delete" and (item or method == "post" or uri not in COLLECTIONS):
            made["body"] = self._body(patch=method == "patch")
        return made | {names[name]: value for name, value in headers.items()}, condition

    def _apply(self, line: dict[str, Any], uri: str, item: str, condition: dict[str, Any]) -> Reply:
        method = "put" if line["method"] == "post" else line["method"]
        return self.model.write(method, uri, item, line.get("body"), **condition)

    def _compare_result(self, found: dict[str, Any], expected: Reply, uri: str, item: str, method: str) -> None:
        path = f"{uri}/{item}" if item else uri
        assert (found["status"], found["path"], found["revision"]) == (expected.status, path, expected.revision), found
        whole = uri in COLLECTIONS and not item
        assert ("etag" in found) == (method != "delete" and not whole), found

    def _wanted(self) -> tuple[str, str, str, Any]:
        chance = self.chance
        if chance.random() < 0.25:
            uri, item = chance.choice(DOCUMENTS), ""
            method = chance.choices(["put", "patch", "delete"], [5, 4, 1])[0]
        else:
            uri = chance.choice(COLLECTIONS)
            method = chance.choices(["put", "patch", "delete", "post", "drop", "make"], [40, 25, 10, 15, 1, 1])[0]
            known = sorted(self.model.rows.get(uri, {}))
            item = chance.choice(known) if known and chance.random() < 0.5 else chance.choice(ITEMS)
            if method in ("drop", "make"):
                return uri, "", "delete" if method == "drop" else "put", None
            if method == "post":
                item = ""
        return uri, item, method, None if method == "delete" else self._body(patch=method == "patch")

    def _body(self, *, patch: bool) -> dict[str, Any]:
        chance = self.chance
        names = chance.sample(["a", "b", "n", "t"], chance.randrange(4))
        body: dict[str, Any] = {}
        for name in names:
            if name == "t":
                body[name] = [chance.choice(SCALARS) for _ in range(chance.randrange(4))]
            elif name == "n":
                body[name] = {"x": chance.choice(SCALARS), "y": chance.choice(SCALARS)}
            else:
                body[name] = chance.choice(SCALARS)
            if patch and chance.random() < 0.2:
                body[name] = None
        return body

    def _conditions(self, uri: str, item: str) -> tuple[dict[str, str], dict[str, Any]]:
        """Headers, and the same for the model."""
        dice = self.chance.random()
        if dice < 0.15 and (tag := self.model.tag(uri, item)) is not None:
            return {"If-Match": tag}, {"if_match": tag}
        if dice < 0.2:
            return {"If-Match": '"fffff"'}, {"if_match": '"fffff"'}
        if dice < 0.25:
            return {"If-None-Match": "*"}, {"absent": True}
        return {}, {}

    async def _send(
        self, method: str, path: str, content: str | None, headers: dict[str, str], *, killed: bool
    ) -> httpx.Response:
        if not killed:
            return await self.ask(method, path, content=content, headers=headers)
        sending = asyncio.create_task(self.ask(method, path, content=content, headers=headers))
        await asyncio.wait({sending}, timeout=self.chance.uniform(0, MAX_KILL_DELAY_S))
        self.server.kill()
        await asyncio.gather(sending, return_exceptions=True)
        self.server = await self._start()
        return await self.ask(method, path, content=content, headers=headers)

    def _place(self, answer: httpx.Response, uri: str, item: str, method: str) -> tuple[str, str]:
        """Where it was written: the id of a POST is the server's, above all that it made before."""
        if method != "post":
            return uri, item
        if answer.status_code != 201:
            return uri, "new"
        found, made = split(answer.json()["path"])
        assert found == uri
        assert made not in self.model.rows.get(uri, {})
        return uri, made

    def compare(self, answer: httpx.Response, expected: Reply, what: str) -> None:
        assert answer.status_code == expected.status, (what, answer.status_code, answer.text, expected)
        if expected.revision is not None:
            assert int(answer.headers["revision"]) == expected.revision, what

    # Reads

    async def get(self) -> None:
        uri = self.chance.choice(DOCUMENTS + COLLECTIONS)
        item = self.chance.choice(sorted(self.model.rows.get(uri, {})) or ["1"]) if uri in COLLECTIONS else ""
        row = self.model.rows.get(uri, {}).get(item)
        answer = await self.ask("GET", C + (f"{uri}/{item}" if item else uri))
        if row is None:
            assert answer.status_code == 404, answer.text
            return
        assert (answer.status_code, decode_body(answer.content)) == (200, row.body), uri
        assert answer.headers["etag"] == self.model.tag(uri, item)

    async def page(self) -> None:
        """All pages of a query."""
        uri = self.chance.choice(COLLECTIONS)
        condition = None if self.chance.random() < 0.2 else self.condition(2)
        fields = self.chance.sample(["a", "b"], self.chance.randrange(3))
        sort = [(name, self.chance.random() < 0.5) for name in fields]
        size = self.chance.choice([1, 2, 5, 100])
        asked = {"size": str(size)}
        if condition is not None:
            asked["filter"] = text_of(condition)
        if sort:
            asked["sort"] = ",".join(f"-{name}" if descending else name for name, descending in sort)
        bodies = self.model.bodies(uri)
        if bodies is None:
            assert (await self.ask("GET", C + uri, params=asked)).status_code == 404
            return
        matching = [body for body in bodies.values() if naive_match(condition, body)]
        expected = naive_sorted(matching, sort)
        found: list[Any] = []
        link: str | None = str(httpx.URL(C + uri, params=asked))
        while link is not None:
            answer = await self.ask("GET", link)
            assert answer.status_code == 200, (link, answer.text)
            page = decode_body(answer.content)
            elements = page["_embedded"]["els"]
            assert len(elements) <= size
            found += elements
            following = page.get("_links", {}).get("next")
            link = None if following is None else urljoin(link, following["href"])
            assert len(found) <= len(expected), (asked, found, expected)
        assert found == expected, (uri, asked)

    def condition(self, depth: int) -> FilterNode:
        chance = self.chance
        dice = chance.random()
        if depth and dice < 0.35:
            return Binary(chance.choice(["and", "or", "xor"]), self.condition(depth - 1), self.condition(depth - 1))
        if depth and dice < 0.45:
            return Unary("!", self.condition(depth - 1))
        if dice < 0.55:
            return Binary(chance.choice(["has", "has not"]), Field(("t",)), Literal(chance.choice(SCALARS)))
        if dice < 0.65:
            return FunctionCall(chance.choice(["exists", "empty"]), (Field((chance.choice("ab"),)),))
        field = chance.choice([("a",), ("b",), ("n", "x"), ("id",)])
        return Binary(chance.choice(["=", "!=", "<", "<=", ">", ">="]), Field(field), Literal(chance.choice(SCALARS)))

    # Definitions

    async def index(self) -> None:
        """Make or remove one of three; whatever there is, answers are the same."""
        uri, name = self.chance.choice(COLLECTIONS), f"i{self.chance.randrange(3)}"
        where = f"/hyper-storage/indexes/{uri.replace('/', '%2F')}"
        if self.chance.random() < 0.3:
            assert (await self.ask("DELETE", f"{where}/{name}")).status_code in (204, 404)
            return
        fields = self.chance.sample(["a", "b", "n.x"], self.chance.randrange(1, 3))
        made: dict[str, Any] = {
            "indexId": name,
            "sortBy": [{"fieldName": one, "order": self.chance.choice(["asc", "desc"])} for one in fields],
        }
        if self.chance.random() < 0.4:
            made["filterBy"] = text_of(self.condition(1))
        answer = await self.ask("POST", where, json=made)
        assert answer.status_code in (201, 409), answer.text

    async def view(self) -> None:
        """Make or remove the view."""
        if self.has_view:
            assert (await self.ask("DELETE", f"/hyper-storage/views/{VIEW}")).status_code in (200, 204)
            self.has_view = False
            return
        self.view_filter = self.condition(1)
        made = {"template_uri": f"{VIEWED}/{{*}}", "filter": text_of(self.view_filter)}
        answer = await self.ask("PUT", f"/hyper-storage/views/{VIEW}", json=made)
        assert answer.status_code in (200, 201), answer.text
        self.has_view = True

    async def check_view(self) -> None:
        """A view follows soon; nothing is written while it is waited for."""
        if not self.has_view:
            return
        bodies = self.model.bodies(VIEWED) or {}
        expected = [body for item, body in sorted(bodies.items()) if naive_match(self.view_filter, body)]

        seen: list[Any] = []

        async def shown() -> bool:
            answer = await self.ask("GET", C + VIEW, params={"size": "10000"})
            seen[:] = decode_body(answer.content)["_embedded"]["els"] if answer.status_code == 200 else [answer.text]
            return seen == expected

        try:
            await until(shown)
        except TimeoutError as error:
            raise AssertionError(f"the view of {text_of(self.view_filter)} shows {seen}, not {expected}") from error

    # The past

    async def past(self) -> None:
        """The state at a revision, and what the events after it make of that."""
        uri = self.chance.choice(sorted(self.model.revisions) or [DOCUMENTS[0]])
        last = self.model.revisions.get(uri, 0)
        if last:
            await self.check_past(uri, self.chance.randrange(max(0, last - 60), last + 1))

    async def check_past(self, uri: str, revision: int) -> None:
        state = self.model.past[uri, revision] if revision else None
        answer = await self.ask("GET", C + uri, params={"at": str(revision)})
        assert answer.status_code == (404 if state is None else 200), (uri, revision, answer.text)
        if state is not None:
            body = decode_body(answer.content)
            wanted = [state[item] for item in sorted(state)] if uri in COLLECTIONS else state[""]
            assert (body["_embedded"]["els"] if uri in COLLECTIONS else body) == wanted, (uri, revision)
        events = await self.events(uri, revision)
        assert [event["headers"]["revision"] for event in events] == list(
            range(revision + 1, self.model.revisions[uri] + 1)
        )
        assert replay(state, events) == self.model.bodies(uri), (uri, revision)

    async def feed(self) -> None:
        """A feed that goes on behind any event leads from the state of then to that of now."""
        uri = self.chance.choice(sorted(self.model.revisions) or [DOCUMENTS[0]])
        last = self.model.revisions.get(uri, 0)
        if last:
            await self.check_feed(uri, self.chance.randrange(max(0, last - 100), last))

    async def check_feed(self, uri: str, after: int) -> None:
        last, events = self.model.revisions[uri], list[dict[str, Any]]()
        headers, url = {"Last-Event-ID": str(after)}, f"{self.server.url}{C}{uri}?feed"
        async with asyncio.timeout(60), self.http.stream("GET", url, headers=headers) as answer:
            assert answer.status_code == 200
            rest = b""  # not by lines of text: a body may have other ends of lines
            async for chunk in answer.aiter_bytes():
                *frames, rest = (rest + chunk).split(b"\n\n")
                for frame in frames:
                    fields = dict(line.split(b": ", 1) for line in frame.split(b"\n"))
                    if fields.get(b"event", b"").startswith(b"feed:"):
                        events.append(decode_body(fields[b"data"]))
                if events and events[-1]["headers"]["revision"] >= last:
                    break
        assert [event["headers"]["revision"] for event in events] == list(range(after + 1, last + 1))
        state = self.model.past[uri, after] if after else None
        assert replay(state, events) == self.model.bodies(uri), (uri, after)

    async def events(self, uri: str, after: int) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = []
        while True:
            answer = await self.ask("GET", C + uri, params={"history": "", "size": "1000", "after": str(after)})
            assert answer.status_code == 200, answer.text
            page = decode_body(answer.content)["_embedded"]["els"]
            if not page:
                return found
            found += page
            after = page[-1]["headers"]["revision"]

    async def check_everything(self) -> None:
        """At the end: all bodies, the view, and the whole feed of every document."""
        await self.check_view()
        for uri, last in self.model.revisions.items():
            for revision in {0, last // 2, last}:
                await self.check_past(uri, revision)
            for revision in {0, self.chance.randrange(last)}:
                await self.check_feed(uri, revision)
            bodies = self.model.bodies(uri)
            answer = await self.ask("GET", C + uri, params={"size": "10000"} if uri in COLLECTIONS else {})
            if bodies is None:
                assert answer.status_code == 404
                continue
            body = decode_body(answer.content)
            if uri in COLLECTIONS:
                assert body["_embedded"]["els"] == [bodies[item] for item in sorted(bodies)]
                assert answer.headers.get("hyper-storage-count") in (None, str(len(bodies)))
            else:
                assert body == bodies[""]
