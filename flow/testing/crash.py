"""Dying at a chosen commit, for real or as far as one process can tell."""

import os
import signal
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Final, Literal, NoReturn, TypeVar

from flow.store import IMPORTED, Head, MemoryStore, State, ThreadStore

T = TypeVar("T")

When = Literal["before", "after"]


class Crash(BaseException):
    """The process died: nothing catches it that is made to catch errors."""


def crash() -> NoReturn:
    """Die for a test in the same process."""
    raise Crash("the process is dead; resume with the store that it wrote to")


def kill() -> NoReturn:
    """Kill this process, with no chance to clean up."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("a killed process went on")


class Crashing:
    """A `flow.store.ThreadStore` that dies just before or just after its n-th commit.

    What begins a thread, or takes one in, counts as a commit; one that is refused does not. Once dead it stays dead:
    every later use dies too, so that nothing of the run goes on behind a caught exception.

        store = MemoryStore()
        with pytest.raises(Crash):
            await agent.run("orders-7", machine, order, store=Crashing(store, at=3), **cast)
        run = await agent.resume("orders-7", machine, order, store=store, **cast)

    In a process of its own, `how=kill` is the real thing:

        await agent.run("orders-7", machine, order, store=Crashing(SqliteStore(path), at=3, how=kill), **cast)

    Args:
        store: keeps the threads; it is what a later process opens.
        at: which commit, from 1; None only counts.
        when: die `before` the commit is made, or `after` it is durable and before anybody learns of that.
        how: does the dying, `crash` or `kill`.

    Attributes:
        commits: how many were made.
        dead: whether the time has come.
    """

    def __init__(
        self,
        store: ThreadStore,
        at: int | None = None,
        when: When = "after",
        how: Callable[[], NoReturn] = crash,
    ) -> None:
        self.commits = 0
        self.dead = False
        self._store: Final = store
        self._at: Final = at
        self._when: Final = when
        self._how: Final = how

    async def create(self, name: str, opening: bytes, state: bytes) -> Head:
        return await self._made(lambda: self._store.create(name, opening, state))

    async def adopt(self, name: str, records: Sequence[bytes], state: bytes = IMPORTED) -> Head:
        return await self._made(lambda: self._store.adopt(name, records, state))

    async def commit(self, name: str, at: Head, records: Sequence[bytes], state: bytes | None = None) -> Head:
        return await self._made(lambda: self._store.commit(name, at, records, state))

    async def head(self, name: str) -> Head:
        self._live()
        return await self._store.head(name)

    async def read(self, name: str, start: int = 0) -> Sequence[bytes]:
        self._live()
        return await self._store.read(name, start)

    async def states(self, name: str, start: int = 0) -> Sequence[State]:
        self._live()
        return await self._store.states(name, start)

    async def names(self) -> Sequence[str]:
        self._live()
        return await self._store.names()

    def die(self) -> NoReturn:
        """Die now, for instance in an action."""
        self.dead = True
        self._how()

    async def _made(self, commit: Callable[[], Awaitable[Head]]) -> Head:
        self._live()
        if self._when == "before" and self.commits + 1 == self._at:
            self.die()
        head = await commit()
        self.commits += 1
        if self._when == "after" and self.commits == self._at:
            self.die()
        return head

    def _live(self) -> None:
        if self.dead:
            self._how()


async def crash_everywhere(
    start: Callable[[ThreadStore], Awaitable[T]],
    resume: Callable[[ThreadStore], Awaitable[T]],
    make_store: Callable[[], ThreadStore] = MemoryStore,
) -> Mapping[str, T]:
    """Crash a run before and after each of its commits, resume each, and return what came of all of them.

        results = await crash_everywhere(
            lambda store: agent.run("t", machine, order, store=store, **cast()),
            lambda store: agent.resume("t", machine, order, store=store, **cast()),
        )
        assert all(run.record == expected for run in results.values())

    Args:
        start: runs in a store that it is given.
        resume: goes on with the thread in a store; a run that crashed before it had a thread is started anew.
        make_store: gives a new store for each crash.

    Returns:
        What `start` or `resume` returned, by `before 1`, `after 1`, `before 2`… and, without a crash, `undisturbed`.
    """
    counted = Crashing(make_store())
    results = {"undisturbed": await start(counted)}
    for at in range(1, counted.commits + 1):
        for when in ("before", "after"):
            store = make_store()
            try:
                await start(Crashing(store, at, when))
            except Crash:
                go_on = resume if await store.names() else start
                results[f"{when} {at}"] = await go_on(store)
            else:
                raise AssertionError(f"the run made fewer than {at} commits this time: let it do the same every time")
    return results
