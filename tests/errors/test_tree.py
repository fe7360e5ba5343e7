"""One tree of errors: what is drawn is what there is, and everything hangs on it."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil
import re
from collections.abc import Callable

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


@pytest.mark.parametrize(
    "error",
    [
        errors.Conflict("orders:o-1", 1, 2, "life"),
        errors.EventMismatch("paid", 1, 7, "no cents", remedy="mend it", where="Order 'o-1'"),
        errors.OutcomeUnknown("orders:o-1", "1.x", "no answer"),
        errors.InvalidInput("wrong"),
    ],
    ids=lambda error: type(error).__name__,
)
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, lambda error: pickle.loads(pickle.dumps(error))])
def test_an_error_gets_to_another_process_as_it_is(
    error: Exception, duplicate: Callable[[Exception], Exception]
) -> None:
    """As from a worker of a pool, which hangs or breaks if it does not."""
    again = duplicate(error)
    assert (type(again), str(again), vars(again)) == (type(error), str(error), vars(error))


@pytest.mark.parametrize("name", errors.__all__)
def test_every_error_can_be_pickled(name: str) -> None:
    kind = getattr(errors, name)
    error = kind.__new__(kind, "what happened")
    error.detail = 3
    again = pickle.loads(pickle.dumps(error))
    assert (type(again), again.args, again.detail) == (kind, ("what happened",), 3)
