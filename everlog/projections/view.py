"""Reading what a projection has written into the store's own tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from everlog.core.values import Position
from everlog.projections.port import View

if TYPE_CHECKING:
    from everlog.projections.api import Projections


class ProjectionView:
    """What a projection has written into the store's own tables."""

    def __init__(self, projections: Projections, name: str) -> None:
        self._projections = projections
        self._name = name

    async def wait(self, token: Position | str, *, seconds: float | None = 30.0) -> None:
        """Until the view has what this token stands for."""
        await self._projections.wait(self._name, token, seconds=seconds)

    async def fetch(self, statement: str, *values: Any, after: Position | str | None = None) -> list[tuple[Any, ...]]:
        """The rows of a query; with `after=token`, once the view has what that token stands for."""
        if after is not None:
            await self.wait(after)
        return await (await self._view()).fetch(statement, *values)

    async def execute(self, statement: str, *values: Any) -> int:
        """Run a statement, such as one that makes the view's tables."""
        return await (await self._view()).execute(statement, *values)

    async def _view(self) -> View:
        """The copy that is the current one; each statement sees one copy, whatever is switched meanwhile."""
        store = await self._projections.store()
        copies = await store.copies(self._name)
        return store.view(copies.names(copies.current))
