"""Conformance suites of schemas: of a store (fixture `store`), and of documents, wherever they are (fixture `docs`)."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from everlog.documents.api import Documents
from everlog.documents.port import DocumentStore
from everlog.documents.schemas.model import (
    DocumentSchema,
    SchemaCheck,
    SchemaKey,
    SchemaProblem,
    SchemaViolation,
)
from everlog.errors import DocumentNotFound, InvalidDocument, SchemaViolated
from everlog.testing.documents import NOW, name

ORDER: dict[str, Any] = {
    "type": "object",
    "properties": {"total": {"type": "number", "minimum": 0}, "note": {"type": "string", "maxLength": 5}},
    "required": ["total"],
}


class SchemaStoreConformance:
    """A store keeps schemas and their checks. Its subclass has the fixture `store`."""

    async def test_a_schema_comes_back_until_it_is_deleted(self, store: DocumentStore) -> None:
        schema_id = name("s")
        first = DocumentSchema(schema_id, "orders~", '{"multipleOf":0.01}', "v1", NOW)
        assert await store.schema(schema_id) is None
        assert await store.put_schema(first)
        assert await store.schema(schema_id) == first
        second = msgspec.structs.replace(first, template="o/{*}~", text="true", version="v2", modified_ms=NOW + 1)
        assert not await store.put_schema(second)
        assert await store.schema(schema_id) == second
        assert SchemaKey(schema_id, "o/{*}~", "v2") in await store.schema_keys()
        assert await store.delete_schema(schema_id)
        assert not await store.delete_schema(schema_id)
        assert await store.schema(schema_id) is None
        assert schema_id not in {key.schema_id for key in await store.schema_keys()}

    async def test_a_check_changes_only_at_the_expected_beat(self, store: DocumentStore) -> None:
        schema_id = name("s")
        problem = SchemaProblem("orders~/1", (SchemaViolation("/total", "/properties/total/type", "no"),))
        first = SchemaCheck("c1", schema_id, "v1", total=7, started_ms=NOW, released=True)
        second = msgspec.structs.replace(first, checked=3, violations=1, problems=(problem,), cursor=("1",))
        await store.put_schema(DocumentSchema(schema_id, "orders~", "true", "v1", NOW))
        assert await store.schema_check(schema_id) is None
        assert not await store.save_schema_check(first, 2, 1)
        assert await store.save_schema_check(first, 1, None)
        assert not await store.save_schema_check(second, 1, None)
        assert await store.schema_check(schema_id) == (first, 1)
        assert not await store.save_schema_check(second, 3, 2)
        assert await store.save_schema_check(second, 2, 1)
        assert await store.schema_check(schema_id) == (second, 2)
        assert (second, 2) in await store.schema_checks()
        await store.delete_schema(schema_id)
        assert await store.schema_check(schema_id) is None


async def ended(docs: Documents, schema_id: str) -> SchemaCheck:
    """The check when it has ended."""
    async with asyncio.timeout(60):
        while not (found := await docs.schema_check(schema_id)).ended:  # noqa: ASYNC110 - another process may do it
            await asyncio.sleep(0.05)
    return found


class SchemaConformance:
    """Writes fit the schemas that match. A subclass has the fixture `docs`."""

    async def test_each_kind_of_write_fits(self, docs: Documents) -> None:
        uri = name("orders") + "~"
        made = await docs.put_schema(uri.strip("~"), uri, ORDER)
        assert (made.schema_id, made.template, made.body) == (uri.strip("~"), uri, ORDER)
        await docs.put(f"{uri}/1", {"total": 1})
        with pytest.raises(SchemaViolated) as put:
            await docs.put(f"{uri}/1", {"total": "1"})
        with pytest.raises(SchemaViolated):
            await docs.post(uri, {"note": "x"})
        with pytest.raises(SchemaViolated):
            await docs.patch(f"{uri}/1", {"total": None})
        with pytest.raises(SchemaViolated):
            await docs.patch(f"{uri}/1", {"note": "too long"})
        (error,) = put.value.errors
        assert (error["schema"], error["path"]) == (made.schema_id, "/total")
        assert error["schemaPath"] == "/properties/total/type"
        assert "number" in error["message"]
        assert (await docs.get(f"{uri}/1")).body == {"total": 1, "id": "1"}
        assert (await docs.get(f"{uri}/1")).revision == 1
        assert (await docs.patch(f"{uri}/1", {"note": "short"})).revision == 2
        assert (await docs.post(uri, {"total": 0.5})).revision == 3
        await docs.delete(f"{uri}/1")
        await docs.delete_schema(made.schema_id)
        await docs.put(f"{uri}/1", {"total": "1"})

    async def test_a_batch_fits_as_a_whole_or_stores_nothing(self, docs: Documents) -> None:
        uri = name("orders") + "~"
        schema_id = uri.strip("~")
        await docs.put_schema(schema_id, uri, ORDER)
        written = await docs.batch(
            uri,
            [
                {"method": "put", "id": "1", "body": {"total": 1}},
                {"method": "patch", "id": "1", "body": {"note": "x"}},
                {"method": "post", "body": {"total": 2}},
            ],
        )
        assert [one.revision for one in written] == [1, 2, 3]
        with pytest.raises(SchemaViolated) as refused:
            await docs.batch(
                uri,
                [{"method": "patch", "id": "1", "body": {"total": 5}}, {"method": "post", "body": {"total": "2"}}],
            )
        assert refused.value.facts["operation"] == 1
        assert [error["path"] for error in refused.value.errors] == ["/total"]
        assert (await docs.get(f"{uri}/1")).body == {"total": 1, "note": "x", "id": "1"}
        await docs.delete_schema(schema_id)

    async def test_all_that_match_hold(self, docs: Documents) -> None:
        top, uri = name("t"), "orders~"
        await docs.put_schema(f"{top}-a", f"{top}/{{*}}~", {"required": ["a"]})
        await docs.put_schema(f"{top}-b", f"{top}/{{*}}~/{{*}}", {"required": ["b"]})
        await docs.put_schema(f"{top}-c", f"{top}/one", {"type": "integer"})
        with pytest.raises(SchemaViolated) as refused:
            await docs.put(f"{top}/{uri}/1", {})
        assert [error["schema"] for error in refused.value.errors] == [f"{top}-a", f"{top}-b"]
        await docs.put(f"{top}/{uri}/1", {"a": 1, "b": 1})
        await docs.put(f"{top}/one", 1)
        with pytest.raises(SchemaViolated):
            await docs.put(f"{top}/one", 1.5)
        await docs.put(f"{top}/other", "no schema is for it")
        await docs.put(f"{top}/new~")  # a collection has no body of its own
        for one in "abc":
            await docs.delete_schema(f"{top}-{one}")

    async def test_a_bad_schema_is_not_stored(self, docs: Documents) -> None:
        schema_id = name("s")
        bad: list[tuple[Any, str]] = [
            (5, "invalid-schema"),
            ({"type": "nonsense"}, "invalid-schema"),
            ({"$schema": "https://example.com/mine"}, "unknown-draft"),
            ({"$ref": "http://127.0.0.1:1/x"}, "remote-reference"),
            ({"properties": {"a": {"$ref": "file:///etc/passwd"}}}, "remote-reference"),
            ({"$ref": "#/$defs/absent"}, "invalid-schema"),
            ({"pattern": "(a)\\1"}, "invalid-pattern"),
            ({"patternProperties": {"(?=a)": {}}}, "invalid-pattern"),
            ({"pattern": "a" * 501}, "invalid-pattern"),
            ({"enum": ["x" * 70_000]}, "schema-too-large"),
        ]
        for schema, code in bad:
            with pytest.raises(InvalidDocument) as refused:
                await docs.put_schema(schema_id, "orders~", schema)
            assert refused.value.code == code, schema
        with pytest.raises(InvalidDocument):
            await docs.put_schema(schema_id, "a//b", True)
        with pytest.raises(InvalidDocument):
            await docs.put_schema("no id", "a/b", True)
        with pytest.raises(DocumentNotFound):
            await docs.schema(schema_id)
        with pytest.raises(DocumentNotFound):
            await docs.delete_schema(schema_id)
        assert schema_id not in {one.schema_id for one in await docs.schemas()}

    async def test_a_check_names_what_does_not_fit(self, docs: Documents) -> None:
        uri = name("orders") + "~"
        for number in range(5):
            await docs.put(f"{uri}/{number}", {"total": number if number % 2 else "much"})
        schema_id = uri.strip("~")
        await docs.put_schema(schema_id, uri, ORDER, check=True)
        found = await ended(docs, schema_id)
        assert (found.state, found.checked, found.violations, found.total) == ("done", 5, 3, 5)
        assert [problem.path for problem in found.problems] == [f"{uri}/{number}" for number in (0, 2, 4)]
        assert found.problems[0].errors[0].path == "/total"
        for number in (0, 2, 4):
            await docs.put(f"{uri}/{number}", {"total": number})
        again = await docs.check_schema(schema_id)
        assert again.check_id != found.check_id
        found = await ended(docs, schema_id)
        assert (found.state, found.checked, found.violations, found.problems) == ("done", 5, 0, ())
        await docs.delete_schema(schema_id)
        with pytest.raises(DocumentNotFound):
            await docs.schema_check(schema_id)

    async def test_a_check_of_many_collections_and_documents(self, docs: Documents) -> None:
        top = name("t")
        await docs.put(f"{top}/a~/1", {"n": 1})
        await docs.put(f"{top}/b~/1", {"n": "1"})
        await docs.put(f"{top}/plain", {"n": "1"})
        await docs.put_schema(f"{top}-all", f"{top}/{{*}}~", {"properties": {"n": {"type": "integer"}}}, check=True)
        await docs.put_schema(f"{top}-one", f"{top}/plain", {"properties": {"n": {"type": "integer"}}}, check=True)
        found = await ended(docs, f"{top}-all")
        assert (found.state, found.checked, found.violations) == ("done", 2, 1)
        assert [problem.path for problem in found.problems] == [f"{top}/b~/1"]
        assert [problem.path for problem in (await ended(docs, f"{top}-one")).problems] == [f"{top}/plain"]
        for one in ("all", "one"):
            await docs.delete_schema(f"{top}-{one}")

    async def test_a_copy_in_a_view_is_not_looked_at(self, docs: Documents) -> None:
        top = name("t")
        await docs.put_schema(top, f"{top}-view~", {"required": ["absent"]})
        await docs.put_view(f"{top}-view~", f"{top}/{{*}}")
        await docs.put(f"{top}/1", {"n": 1}, wait=True)
        page = await docs.list(f"{top}-view~")
        assert [element["n"] for element in page.elements] == [1]
        await docs.delete_view(f"{top}-view~")
        await docs.delete_schema(top)
