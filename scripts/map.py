"""Draw the rooms of the package and their doors from the real imports, into docs/architecture.md: `make map`.

A room is a package or a module right below `everlog/`; a door is an import from one room to another. Imports count
wherever they stand: at the top of a module, inside a function, under TYPE_CHECKING. `tests/test_layers.py`
reads the same rooms and the same imports.
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "architecture.md"
PACKAGE = "everlog"
BEGIN, END = "<!-- map: begin -->", "<!-- map: end -->"

# The rooms by floor, from the bottom to the top: an import only points to an earlier room. `everlog` is the package's
# own __init__.py.
FLOORS: Mapping[str, tuple[str, ...]] = {
    "values and settings": ("version", "errors", "core", "config"),
    "plumbing": ("runtime", "sqlite", "cassandra", "cluster", "spark"),
    "log and store": ("log", "store"),
    "journal": ("journal", "pipeline"),
    "what stands on the journal": ("tags", "projections", "queues", "documents", "pekko"),
    "what users import": ("wire", "api", "remote", "client", "sync", PACKAGE),
    "programs": ("server", "console", "cli", "testing"),
}
ROOMS = tuple(room for rooms in FLOORS.values() for room in rooms)
# Folders with the backends of a room: other rooms go through its port. The rooms of these names are plumbing.
BACKENDS = ("sqlite", "cassandra", "kafka")

Graph = Mapping[str, set[str]]


class Import(NamedTuple):
    """One module needs another. `typing`: only for its types."""

    importer: str
    imported: str
    typing: bool


def modules(root: Path = ROOT) -> dict[str, Path]:
    """The modules of the package by their dotted names."""
    files = sorted((root / PACKAGE).rglob("*.py"))
    return {".".join(file.relative_to(root).with_suffix("").parts).removesuffix(".__init__"): file for file in files}


def room_of(module: str) -> str:
    """The room that a module of the package stands in."""
    return module.split(".")[1] if "." in module else module


@cache
def imports(root: Path = ROOT) -> tuple[Import, ...]:
    """Every import from one module of the package to another."""
    known = modules(root)
    return tuple(
        Import(name, imported, typing)
        for name, file in known.items()
        for imported, typing in _imported(name, file, known)
        if imported != name and imported.split(".")[0] == PACKAGE
    )


def third_party(file: Path) -> set[str]:
    """The top-level names that a module imports from outside the package."""
    names = (name for statement, _ in import_statements(file) for name in _names(statement, "", ()))
    return {name.split(".")[0] for name in names} - {PACKAGE}


def _imported(module: str, file: Path, known: Mapping[str, Path]) -> Iterator[tuple[str, bool]]:
    package = module if file.name == "__init__.py" else module.rpartition(".")[0]
    for statement, typing in import_statements(file):
        for name in _names(statement, package, known):
            yield name, typing


def import_statements(file: Path) -> Iterator[tuple[ast.AST, bool]]:
    """Every import of a module, calls of `import_module` included, and whether it is only for types."""
    text = file.read_text()
    tree = ast.parse(text)
    if "import_module(" in text:
        yield from ((node, False) for node in ast.walk(tree) if isinstance(node, ast.Call))
    todo: list[tuple[ast.AST, bool]] = [(tree, False)]
    while todo:
        node, typing = todo.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, typing
        for name in ("body", "orelse", "handlers", "finalbody", "cases"):
            inner = name == "body" and isinstance(node, ast.If) and _is_for_types(node.test)
            found = getattr(node, name, ())
            # An expression may have a body, too; no import stands in one.
            todo += [(one, typing or inner) for one in (found if isinstance(found, list) else ())]


def _is_for_types(test: ast.expr) -> bool:
    """Whether a condition is TYPE_CHECKING, and nothing more."""
    return ast.unparse(test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}


def _names(node: ast.AST, package: str, known: Iterable[str]) -> Iterator[str]:
    """The modules that a statement imports: those among the known, or else as the import names them."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
        base = ".".join([*above, *([node.module] if node.module else [])])
        for alias in node.names:
            name = f"{base}.{alias.name}"
            yield name if name in known else base
    elif isinstance(node, ast.Call) and "import_module" in (
        getattr(node.func, "attr", ""),
        getattr(node.func, "id", ""),
    ):
        yield from (word.value for word in node.args if isinstance(word, ast.Constant) and isinstance(word.value, str))


def doors(found: Iterable[Import]) -> dict[str, set[str]]:
    """The rooms that each room imports from."""
    graph: dict[str, set[str]] = {}
    for importer, imported, _ in found:
        here, there = room_of(importer), room_of(imported)
        graph.setdefault(here, set())
        graph.setdefault(there, set())
        if here != there:
            graph[here].add(there)
    return graph


def reachable(graph: Graph, start: str) -> set[str]:
    """What can be reached from a node by one step or more."""
    seen: set[str] = set()
    todo = list(graph.get(start, ()))
    while todo:
        node = todo.pop()
        if node not in seen:
            seen.add(node)
            todo += graph.get(node, ())
    return seen


def reduced(graph: Graph) -> dict[str, set[str]]:
    """Without the doors whose room can also be reached through another one. For graphs without cycles."""
    return {
        node: {there for there in near if not any(there in reachable(graph, other) for other in near - {there})}
        for node, near in graph.items()
    }


def purpose(room: str, root: Path = ROOT) -> str:
    """What a room is for: the first paragraph of its docstring."""
    folder = root / PACKAGE if room == PACKAGE else root / PACKAGE / room
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text())) or ""
    return " ".join(text.partition("\n\n")[0].split())


def draw(root: Path = ROOT) -> str:
    """The picture and the table, as they stand in the page."""
    graph = doors(imports(root))
    drawn = reduced(graph)
    lines = ["```mermaid", "graph TD"]
    for number, (floor, rooms) in reversed([*enumerate(FLOORS.items())]):
        lines += [f'    subgraph floor{number}["{floor}"]', f"        {' & '.join(rooms)}", "    end"]
    lines += [f"    {room} --> {' & '.join(_sorted(drawn[room]))}" for room in reversed(ROOMS) if drawn.get(room)]
    lines += ["```", "", "| room | what it is for | its doors |", "|---|---|---|"]
    for room in reversed(ROOMS):
        near = ", ".join(_sorted(graph.get(room, set()))) or "none"
        lines.append(f"| `{room}` | {purpose(room, root)} | {near} |")
    return "\n".join(lines)


def _sorted(rooms: Iterable[str]) -> list[str]:
    return sorted(rooms, key=ROOMS.index)


def drawn_doors(page: str) -> set[tuple[str, str]]:
    """The arrows of the picture in a page."""
    lines = between(page).partition("```\n")[0].splitlines()
    arrows = (line.split(" --> ") for line in lines if " --> " in line)
    return {(here.strip(), there) for here, rooms in arrows for there in rooms.split(" & ")}


def between(page: str) -> str:
    """What stands between the markers of a page."""
    return page.partition(BEGIN)[2].partition(END)[0].strip()


def placed(page: str, drawing: str) -> str:
    """The page with a new drawing between its markers."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not (begin and end):
        raise SystemExit(f"{PAGE}: the markers {BEGIN} and {END} are missing")
    return f"{before}{BEGIN}\n{drawing}\n{END}{after}"


def main() -> None:
    """Draw the map into the page."""
    argparse.ArgumentParser(description=__doc__).parse_args()
    page = PAGE.read_text()
    PAGE.write_text(placed(page, draw()))
    graph = doors(imports())
    count = sum(map(len, graph.values()))
    print(f"{PAGE.relative_to(ROOT)}: {len(ROOMS)} rooms, {count} doors, {len(drawn_doors(PAGE.read_text()))} drawn")


if __name__ == "__main__":
    main()
