"""Declarations in XML: what they say is what the queue is; what is wrong is named with file, line and attribute."""

from __future__ import annotations

import pytest

from everlog.errors import InvalidDeclaration
from everlog.queues.memory import MemoryQueueStore
from everlog.queues.queue import Queue
from everlog.queues.xml import parse_declarations, read_declarations

GOOD = """<?xml version="1.0"?>
<context name="site">
  <table name="pages" model="queue" row-key="site,page">
    <description>Pages to index.</description>
    <schema>
      <column name="site" type="string" required="true"/>
      <column name="page" type="uint32"><min-value>1</min-value></column>
      <column name="title" type="string"><default>untitled</default><max-length>20</max-length></column>
      <column name="big" type="uint128"/>
    </schema>
    <journal bucket="hour" max-wait="1m" max-timeouts="3" merge="on" on-busy="restart" rate-limit="10/s" secure="true"/>
  </table>
  <table name="texts" row-key="id"><schema><column name="id" type="string"/></schema></table>
</context>
"""


async def test_a_declaration_makes_a_queue(tmp_path):
    file = tmp_path / "queues.xml"
    file.write_text(GOOD)
    (declaration,) = read_declarations(file)
    settings = declaration.options.settings
    assert (settings.bucket, settings.max_wait_ms, settings.max_timeouts) == ("hour", 60_000, 3)
    assert (settings.merge, settings.on_busy, settings.secure) == (True, "restart", True)
    assert declaration.description == "Pages to index."
    store = MemoryQueueStore()
    await store.declare(declaration)
    queue = Queue("pages", store)
    await queue.put(("a", 7), {"big": 2**100})
    (info,) = await queue.peek()
    assert (info.key, info.data) == (("a", 7), {"title": "untitled", "big": 2**100})


@pytest.mark.case("journal-tables", 11, 44)
@pytest.mark.parametrize(
    ("old", "new", "line", "attribute"),
    [
        ('model="queue"', 'modle="queue"', 3, "modle"),
        ('max-wait="1m"', 'max-wiat="1m"', 11, "max-wiat"),
        ('max-wait="1m"', 'max-wait="1 parsec"', 11, "max-wait"),
        ('max-timeouts="3"', 'max-timeouts="many"', 11, "max-timeouts"),
        ('max-timeouts="3"', 'max-timeouts="256"', 11, "max-timeouts"),
        ('merge="on"', 'merge="perhaps"', 11, "merge"),
        ('name="pages"', 'name="7pages"', 3, "name"),
        (' name="pages"', "", 3, "name"),
        ('model="queue"', 'model="quee"', 3, "model"),
        ('row-key="site,page"', 'row-key="site,side"', 3, "row-key"),
        ('row-key="site,page"', "", 3, "row-key"),
        ('row-key="site,page"', 'row-key="site,site"', 3, "row-key"),
        ('name="title"', 'name="page"', 8, "name"),
        ('name="title"', 'name="ti tle"', 8, "name"),
        ('name="title"', 'name="Priority"', 8, "name"),
        ('name="title"', 'name="timeout_counter"', 8, "name"),
        ('type="uint32"', 'type="uint33"', 7, "type"),
        ('required="true"', 'required="maybe"', 6, "required"),
        ('name="title" type="string"', 'name="title" type="string" required="true"', 8, "required"),
        ("<default>untitled</default>", f"<default>{'x' * 21}</default>", 8, "default"),
        ("<min-value>1</min-value>", "<min-value>one</min-value>", 7, "min-value"),
    ],
)
def test_what_is_wrong_is_named(old, new, line, attribute):
    """An unknown attribute, a bad name, a duplicate or predefined column: file, line and attribute in the error."""
    assert old in GOOD
    with pytest.raises(InvalidDeclaration) as caught:
        parse_declarations(GOOD.replace(old, new, 1).encode(), "queues.xml")
    error = caught.value
    assert (error.file, error.line, error.attribute) == ("queues.xml", line, attribute)
    assert str(error).startswith(f"queues.xml: line {line}: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not XML"),
        ("<context>", "not XML"),
        ("<table/>", "not <context>"),
        ("<context><tabel/></context>", "<tabel> does not belong"),
        ('<!DOCTYPE x [<!ENTITY a "b">]><context/>', "DOCTYPE"),
        (GOOD.replace("</context>", GOOD[GOOD.index("<table") : GOOD.index("</context>")] + "</context>"), "twice"),
    ],
)
def test_what_is_no_declaration(text, words):
    with pytest.raises(InvalidDeclaration, match=words):
        parse_declarations(text.encode(), "x.xml")


def test_a_file_that_is_not_there(tmp_path):
    with pytest.raises(InvalidDeclaration, match="cannot be read"):
        read_declarations(tmp_path / "no.xml")
