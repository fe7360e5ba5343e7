"""Handlers: a function, a class, one with state, or an actor; and how each of them is called.

A handler is never called while a call of it is open.
"""

from __future__ import annotations

import asyncio
import inspect
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from everlog.errors import HandlerFailed, HandlerTimeout, InvalidProjection
from everlog.projections.port import View
from everlog.projections.watchdog import Watchdog


class Handler:
    """A handler with a beginning and an end. A new one is made for every start of the stream.

    `async def process(self, envelope)`, or `process(self, envelope, view)`.
    """

    async def start(self) -> None:
        """Before the first envelope."""

    async def stop(self) -> None:
        """After the last one, also if the stream failed."""


class StatefulHandler(Handler, ABC):
    """Gets the state that the last call returned; loads the first one anew after a failure."""

    @abstractmethod
    async def initial_state(self) -> Any:
        """The state at the start, and after a failed call."""

    @abstractmethod
    async def process(self, state: Any, envelope: Any) -> Any:
        """Handle the envelope; the new state."""


class ActorMessage:
    """An envelope in the mailbox of an actor, which answers with `done` or `fail`."""

    __slots__ = ("_reply", "envelope")

    def __init__(self, envelope: Any) -> None:
        self.envelope = envelope
        self._reply: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def done(self) -> None:
        """The envelope was handled."""
        if not self._reply.done():
            self._reply.set_result(None)

    def fail(self, cause: BaseException | str) -> None:
        """The envelope could not be handled."""
        if not self._reply.done():
            self._reply.set_exception(cause if isinstance(cause, Exception) else HandlerFailed(str(cause)))

    def answered(self) -> asyncio.Future[None]:
        return self._reply


class Mailbox:
    """The messages of an actor: `async for message in mailbox`."""

    def __init__(self) -> None:
        self._messages: asyncio.Queue[ActorMessage] = asyncio.Queue(1)

    async def put(self, message: ActorMessage) -> None:
        await self._messages.put(message)

    async def __aiter__(self) -> AsyncIterator[ActorMessage]:
        while True:
            yield await self._messages.get()


class ActorHandler(ABC):
    """A task with a mailbox. It is started with the projection and lives through restarts of the stream."""

    @abstractmethod
    async def run(self, mailbox: Mailbox) -> None:
        """Take messages and answer each one, for as long as the projection runs."""


class HandlerSlot:
    """What outlives a stream: the actor, and calls in threads that have not come back."""

    def __init__(self) -> None:
        self._actor: asyncio.Task[None] | None = None
        self._mailbox = Mailbox()
        self.open_calls: set[asyncio.Future[Any]] = set()

    async def ask(self, make: Callable[[], ActorHandler], envelope: Any) -> None:
        """Hand an envelope to the actor; a dead one is made anew."""
        if self._actor is None or self._actor.done():
            self.spawn(make)
        actor, message = self._actor, ActorMessage(envelope)
        assert actor is not None
        await self._mailbox.put(message)
        reply = message.answered()
        await asyncio.wait({reply, actor}, return_when=asyncio.FIRST_COMPLETED)
        if reply.done():
            return reply.result()
        cause = None if actor.cancelled() else actor.exception()
        raise cause if isinstance(cause, Exception) else HandlerFailed("the actor ended before it answered")

    def spawn(self, make: Callable[[], ActorHandler]) -> None:
        """Start the actor, unless it lives."""
        if self._actor is None or self._actor.done():
            self._mailbox = Mailbox()
            self._actor = asyncio.create_task(make().run(self._mailbox))

    def drop_actor(self) -> None:
        """The actor failed, or did not answer: whatever it does next is not heard."""
        if self._actor is not None:
            self._actor.cancel()
            self._actor = None

    async def close(self) -> None:
        """The projection ends."""
        actor, self._actor = self._actor, None
        if actor is not None:
            actor.cancel()
            await asyncio.gather(actor, return_exceptions=True)


class HandlerShape:
    """What a declaration's handler looks like; found once, so that a call costs nothing more."""

    def __init__(self, target: Any, *, factory: bool, blocking: bool = False) -> None:
        self._blocking = blocking
        self.make: Callable[[], Any]
        if inspect.isclass(target) or factory:
            self.make = target
            self.actor = inspect.isclass(target) and issubclass(target, ActorHandler)
            self.stateful = inspect.isclass(target) and issubclass(target, StatefulHandler)
            process = getattr(target, "run" if self.actor else "process", None) if inspect.isclass(target) else None
            skipped = 1
        else:
            self.make = lambda: target
            self.actor = self.stateful = False
            process, skipped = target, 0
        if not factory and not callable(process):
            raise InvalidProjection("a handler is a function, or a class with a method process(envelope)")
        self.generator = inspect.isasyncgenfunction(process)
        self.takes_view = False
        if process is not None and not self.actor:
            self._check(process, skipped + self.stateful)

    def _check(self, process: Any, skipped: int) -> None:
        if inspect.isgeneratorfunction(process):
            raise InvalidProjection("a handler that yields does nothing when it is called: make it a plain function")
        taken = [
            one
            for one in inspect.signature(process).parameters.values()
            if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD) and one.default is one.empty
        ][skipped:]
        if len(taken) not in (1, 2):
            raise InvalidProjection("a handler takes the envelope, or the envelope and the view")
        self.takes_view = len(taken) == 2
        waits = inspect.iscoroutinefunction(process) or self.generator
        if self._blocking and waits:
            raise InvalidProjection("a handler on Spark is a plain function: 'def', not 'async def'")
        if self.takes_view and not waits and not self._blocking:
            raise InvalidProjection("a handler that takes a view must be async: 'async def'")


class HandlerCalls:
    """A handler at work, for one run of the stream."""

    def __init__(self, shape: HandlerShape, slot: HandlerSlot, *, timeout_s: float | None, view: View | None) -> None:
        self._shape = shape
        self._slot = slot
        self._watchdog = None if timeout_s is None else Watchdog(timeout_s)
        self._view = view
        self._handler: Any = None
        self._state: Any = None
        self._loaded = False
        self._process: Callable[..., Any] | None = None
        # The most common handler, a coroutine function of the envelope alone, is called without any detour.
        self._direct: Callable[[Any], Awaitable[Any]] | None = None
        self._threaded = False
        self._stuck = False  # a call in a thread took too long: this handler is not called any more

    async def start(self) -> None:
        """Make the handler and let it begin. An actor is only made if it does not live yet."""
        if self._slot.open_calls:
            raise HandlerTimeout("the last call of this handler has not come back: it is not called again before that")
        if self._shape.actor:
            self._slot.spawn(self._shape.make)
            return
        self._handler = self._shape.make()
        if inspect.isawaitable(self._handler):
            self._handler = await self._handler
        process = getattr(self._handler, "process", self._handler)
        if not callable(process):
            raise HandlerFailed(f"the factory made {type(self._handler).__name__}, which has no process(envelope)")
        self._process = process
        call = process if inspect.isroutine(process) else process.__call__
        self._threaded = not inspect.iscoroutinefunction(call)
        if not (self._threaded or self._shape.stateful or self._shape.takes_view):
            self._direct = process
        await _maybe(getattr(self._handler, "start", None))
        if self._shape.stateful:
            await self._load()

    async def stop(self) -> None:
        if self._watchdog is not None:
            self._watchdog.close()
        if self._handler is not None:
            await _maybe(getattr(self._handler, "stop", None))

    async def _load(self) -> None:
        self._state = await _result(self._handler.initial_state())
        self._loaded = True

    async def call(self, envelope: Any, view: View | None = None) -> None:
        """Handle an envelope, or a list of them; an error, or no answer in time, is raised."""
        watchdog = self._watchdog
        watched = None if watchdog is None else watchdog.begin()
        try:
            found = await (self._call(envelope, view) if self._direct is None else self._direct(envelope))
            if found is not None:
                raise HandlerFailed(f"the handler returned {found!r:.100}: it must return nothing")
        except HandlerTimeout:
            self._give_up()
            raise
        except asyncio.CancelledError as error:
            if watchdog is not None and watched is not None and watchdog.cancelled(watched):
                self._give_up()
                raise HandlerTimeout(f"the handler did not come back within {watchdog.timeout_s:g} s") from error
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            raise HandlerFailed("the handler ended with CancelledError: what it waited for was cancelled") from error
        finally:
            if watchdog is not None and watched is not None:
                watchdog.end(watched)

    def _give_up(self) -> None:
        """The call may go on, for it cannot be ended: whatever comes of it is not waited for."""
        self._stuck = self._threaded
        if self._shape.actor:
            self._slot.drop_actor()

    async def _call(self, envelope: Any, view: View | None) -> Any:
        if self._shape.actor:
            return await self._slot.ask(self._shape.make, envelope)
        if self._shape.stateful:
            return await self._call_stateful(envelope, view)
        assert self._process is not None
        arguments = (envelope, view or self._view) if self._shape.takes_view else (envelope,)
        return await (self._in_thread(arguments) if self._threaded else self._process(*arguments))

    async def _in_thread(self, arguments: tuple[Any, ...]) -> Any:
        """A plain function may block, so it has a thread, which cannot be ended, only waited for."""
        assert self._process is not None
        if self._stuck:
            raise HandlerTimeout("the last call of this handler has not come back: it is not called again before that")
        running = asyncio.ensure_future(asyncio.to_thread(self._process, *arguments))
        self._slot.open_calls.add(running)
        running.add_done_callback(self._slot.open_calls.discard)
        found = await asyncio.shield(running)
        return await found if inspect.isawaitable(found) else found

    async def _call_stateful(self, envelope: Any, view: View | None) -> None:
        if not self._loaded:
            await self._load()
        arguments = (envelope, view or self._view) if self._shape.takes_view else (envelope,)
        self._loaded = False  # until this call is known to be good
        state = await _result(self._handler.process(self._state, *arguments))
        if state is None:
            raise HandlerFailed("a stateful handler returned None: it must return the new state")
        self._state, self._loaded = state, True


async def _maybe(method: Any) -> None:
    if method is not None:
        await _result(method())


async def _result(found: Any) -> Any:
    return await found if inspect.isawaitable(found) else found
