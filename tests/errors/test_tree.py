"""One tree of errors: what is drawn is what there is, and everything hangs on it."""

from __future__ import annotations

import importlib
import pickle
import pkgutil
import re

import pytest

from everlog import errors

LINE = re.compile(r"^ {4}(?P<rails>[│ ]*)(?:[├└]── )?(?P<name>[A-Z]\w+)", re.MULTILINE)


def drawn() -> dict[str, str | None]:
    """Each error of the picture with its parent."""
    found: dict[str, str | None] = {}
    above: list[str] = []
    for line in LINE.finditer(errors.__doc__ or ""):
        depth = 0 if line["name"] == "EverlogError" else 1 + len(line["rails"]) // 4
        del above[depth:]
        found[line["name"]] = above[-1] if above else None
        above.append(line["name"])
    return found


def defined() -> dict[str, type]:
    """Every error class of every module of the package."""
    modules = [
        importlib.import_module(f"{errors.__name__}.{found.name}") for found in pkgutil.iter_modules(errors.__path__)
    ]
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    return {kind.__name__: kind for kind in kinds if issubclass(kind, BaseException)}


def test_the_picture_is_the_tree() -> None:
    assert drawn() == {
        name: None if name == "EverlogError" else kind.__bases__[0].__name__ for name, kind in defined().items()
    }


def test_every_error_can_be_imported_from_the_package() -> None:
    assert errors.__all__ == sorted(defined())
    assert all(getattr(errors, name) is kind for name, kind in defined().items())


@pytest.mark.parametrize("name", errors.__all__)
def test_an_error_is_called_what_one_imports(name: str) -> None:
    """In tracebacks, and where it is sent to another process."""
    kind = getattr(errors, name)
    assert f"{kind.__module__}.{kind.__qualname__}" == f"everlog.errors.{name}"
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert (kind.__doc__ or "").strip()
