"""Imports only point down: a reader of a module finds what it rests on in the rooms below, and nowhere else.

The order of the rooms stands in `scripts/map.py`. Imports inside functions and for types count like all others.
"""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

from scripts.map import (
    BACKENDS,
    PACKAGE,
    PAGE,
    ROOMS,
    ROOT,
    Import,
    between,
    doors,
    draw,
    drawn_doors,
    import_statements,
    imports,
    modules,
    placed,
    purpose,
    reachable,
    reduced,
    room_of,
    third_party,
)

IMPORTS = imports()


def goes_past_a_port(one: Import) -> bool:
    """Whether it leads into the folder of another room's backend."""
    here, there = room_of(one.importer), room_of(one.imported)
    return here != there and any(part in BACKENDS for part in one.imported.split(".")[2:])


def points_up(one: Import) -> bool:
    return ROOMS.index(room_of(one.imported)) > ROOMS.index(room_of(one.importer))


def cycles(pairs: Iterable[tuple[str, str]]) -> list[str]:
    """The nodes from which a way leads back to them."""
    graph: dict[str, set[str]] = {}
    for here, there in pairs:
        graph.setdefault(here, set()).add(there)
    return sorted(node for node in graph if node in reachable(graph, node))


def test_every_module_stands_in_a_known_room():
    assert {room_of(module) for module in modules()} == set(ROOMS)


def test_imports_point_down():
    assert [one for one in IMPORTS if points_up(one)] == []


def test_no_import_goes_past_a_port():
    assert [one for one in IMPORTS if goes_past_a_port(one)] == []


def test_no_link_is_kept_with_the_sources():
    """One in the place of an environment would take the environment away from every checkout that merges it."""
    if not (ROOT / ".git").exists():
        pytest.skip("this is no checkout")
    listed = subprocess.run(["git", "ls-files", "--stage"], cwd=ROOT, capture_output=True, text=True, check=True)
    assert [line for line in listed.stdout.splitlines() if line.startswith("120000")] == []


def test_rooms_form_no_cycle():
    assert cycles((room, there) for room, near in doors(IMPORTS).items() for there in near) == []


def test_modules_form_no_cycle():
    """Also within a room. An object and the part that it hands out may name each other in their types."""
    assert cycles((one.importer, one.imported) for one in IMPORTS if not one.typing) == []


def test_no_import_hides_in_a_call():
    """`import_module` is read like an import; `__import__` would not be seen."""
    assert [module for module, file in modules().items() if "__import__" in file.read_text()] == []


def test_only_the_branch_for_types_is_for_types(tmp_path):
    file = tmp_path / "module.py"
    file.write_text(
        "if TYPE_CHECKING:\n    import a\nelse:\n    import b\n"
        "if not TYPE_CHECKING:\n    import c\nif typing.TYPE_CHECKING:\n    import d\n"
    )
    found = {node.names[0].name: typing for node, typing in import_statements(file)}
    assert found == {"a": True, "b": False, "c": False, "d": True}


def test_the_core_rests_on_the_errors_alone():
    assert doors(IMPORTS)["core"] <= {"errors"}


def test_the_core_needs_no_library_but_msgspec():
    for module, file in modules().items():
        if room_of(module) in {"core", "errors"}:
            assert third_party(file) - sys.stdlib_module_names <= {"msgspec"}, module


def test_the_fold_needs_no_store_no_log_and_no_spark():
    """It is called by readers, writers, the pipeline and tests: so it rests on values alone."""
    graph: dict[str, set[str]] = {}
    for one in IMPORTS:
        graph.setdefault(one.importer, set()).add(one.imported)
    files = modules()
    needed = reachable(graph, "everlog.core.fold")
    assert {room_of(module) for module in needed} == {"core", "errors"}
    assert not any("pyspark" in third_party(files[module]) for module in needed)


def test_every_room_says_what_it_is_for():
    assert [room for room in ROOMS if not purpose(room)] == []


def test_the_picture_shows_the_real_doors():
    """The drawn arrows are doors, and every other door leads where arrows lead."""
    real = {(room, there) for room, near in doors(IMPORTS).items() for there in near}
    drawn = drawn_doors(PAGE.read_text())
    graph: dict[str, set[str]] = {}
    for here, there in drawn:
        graph.setdefault(here, set()).add(there)
    assert drawn <= real, "run 'make map'"
    assert all(there in reachable(graph, here) for here, there in real), "run 'make map'"


def test_the_page_has_the_map_of_today():
    assert between(PAGE.read_text()) == draw(), "run 'make map'"


# The reader of imports itself, on a package made for it.


@pytest.fixture
def house(tmp_path: Path) -> Path:
    for name, text in {
        "__init__": '"""A house."""\nfrom everlog import sync\n',
        "sync": "from everlog.client import connect\n",
        "client": "def connect():\n    from everlog.log.kafka import log\n",
        "log/__init__": '"""The log.\n\nMore about it."""\n',
        "log/kafka/__init__": "",
        "log/kafka/log": (
            "from typing import TYPE_CHECKING\nfrom .. import port\nfrom . import log\n"
            "if TYPE_CHECKING:\n    import everlog.cli\nelse:\n    import everlog.core\n"
        ),
        "log/port": "import importlib, confluent_kafka\nimportlib.import_module('everlog.core')\n",
        "core": "",
        "cli": "",
    }.items():
        file = tmp_path / PACKAGE / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_imports_are_found_wherever_they_stand(house):
    assert set(imports(house)) == {
        Import("everlog", "everlog.sync", False),
        Import("everlog.sync", "everlog.client", False),
        Import("everlog.client", "everlog.log.kafka.log", False),
        Import("everlog.log.kafka.log", "everlog.log.port", False),
        Import("everlog.log.kafka.log", "everlog.cli", True),
        Import("everlog.log.kafka.log", "everlog.core", False),
        Import("everlog.log.port", "everlog.core", False),
    }
    assert third_party(house / PACKAGE / "log" / "port.py") == {"importlib", "confluent_kafka"}
    assert purpose("log", house) == "The log."


def test_offences_are_seen(house):
    found = imports(house)
    assert [one.imported for one in found if goes_past_a_port(one)] == ["everlog.log.kafka.log"]
    assert [one.imported for one in found if points_up(one)] == ["everlog.cli"]
    assert cycles([("a", "b"), ("b", "c"), ("c", "b"), ("c", "d")]) == ["b", "c"]


def test_a_door_is_left_out_where_another_way_leads_there():
    assert reduced({"a": {"b", "c", "d"}, "b": {"c"}, "c": {"d"}, "d": set()}) == {
        "a": {"b"},
        "b": {"c"},
        "c": {"d"},
        "d": set(),
    }


def test_only_the_part_between_the_markers_is_replaced():
    page = "before\n<!-- map: begin -->\nold\n<!-- map: end -->\nafter\n"
    new = placed(page, "new")
    assert between(new) == "new"
    assert new.replace("new", "old") == page
    with pytest.raises(SystemExit):
        placed("no markers", "new")


# The page names real things.

_QUOTED = re.compile(r"`([^`\n]+)`")
_PATH = re.compile(r"(?:everlog|tests|bench|scripts|docs)/[\w./]*")


def quoted_in(page: Path) -> set[str]:
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    return set(_QUOTED.findall(text))


def is_defined(name: str) -> bool:
    """Whether a dotted name, without the package, leads to a module, or to a class or function of one."""
    words = [PACKAGE, *name.split(".")]
    known = modules()
    module = max((at for at in range(1, len(words) + 1) if ".".join(words[:at]) in known), default=0)
    scope: Sequence[ast.stmt] = ast.parse(known[".".join(words[:module])].read_text()).body
    for word in words[module:]:
        kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
        found = next((one for one in scope if isinstance(one, kinds) and one.name == word), None)
        if found is None:
            return False
        scope = found.body
    return True


def test_the_files_that_the_page_names_exist():
    named = {name for name in quoted_in(PAGE) if _PATH.fullmatch(name)}
    assert len(named) > 20
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_the_functions_that_the_page_names_exist():
    dotted = {name for name in quoted_in(PAGE) if re.fullmatch(r"\w+(\.\w+)+", name)}
    named = {name for name in dotted if name.split(".")[0] in set(ROOMS) - {PACKAGE}}
    assert len(named) > 50
    assert [name for name in sorted(named) if not is_defined(name)] == []


def test_a_name_that_is_not_defined_is_seen():
    assert is_defined("core.fold.fold")
    assert is_defined("journal.writer.Writer.append")
    assert not is_defined("journal.writer.Writer.never")
    assert not is_defined("core.nowhere.fold")
