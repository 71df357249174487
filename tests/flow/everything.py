"""A plan of all that plans can do, and the world in which its actions have effects."""

from collections.abc import Awaitable, Callable, Sequence
from itertools import permutations
from typing import Any

import anyio

from envelope import Identity
from flow import Call, Clock, Delivery, Loop, Machine, MemoryStore, Panel, Plan, Retry, Step, ThreadStore, Transition
from flow.testing import ScriptedPeer
from tests.flow.stage import ANNA, BEN, Stage, unless_wrong


def step(name: str, target: str, gate: Any = "before", **fields: Any) -> Step:
    return Step(name, target=target, gate=gate, **({} if gate == "none" else {"payload": "do it"}), **fields)


def add(original: Any, records: Sequence[Any]) -> Any:
    return {"n": sum(record["n"] for record in records)}


def everything() -> tuple[list[Step], list[Panel]]:
    """The steps, of which each asks one recipient, and one panel."""
    inner = Plan([step("x", "b", to=["ben"]), step("y", "c", "after", needs=["x"], to=["anna"])])
    steps = [
        step("start", "b", to=["anna"], route=choose),
        step("p", "c", needs=["pre"], to=["anna"]),
        step("q", "c", needs=["pre"], to=["ben"]),
        step("pre", "a", "none", needs=["start"]),
        step("post", "a", needs=["start"], to=["ben"]),
        Step("many", sub=inner, loop=Loop(2, go_on), needs=["p", "q"], gate="after", to=["ben"], payload="looped"),
        step("try", "d", needs=["many"], to=["ben"], retry=Retry(2, delay=0)),
        step("mend", "d", "after", needs=["try"], to=["ben"], when="failed"),
        step("end", "e", "none", needs=["mend"]),
    ]
    return steps, [Panel(["p", "q"], reducer=add)]


def choose(record: Any) -> str:
    return "pre"


def go_on(record: Any, call: Call) -> bool:
    return True


class Everything:
    """What lies outside of all processes that run the plan.

    Args:
        at: the number of a moment, from 0: before and after each commit, and inside each action and each peer.
        meanwhile: what happens at that moment, before anything else does.

    Attributes:
        calls: of the actions, in order.
        effects: the keys of the actions that succeeded, each once, as a service sees them that knows each key.
        moments: how many there were.
    """

    def __init__(self, at: int = -1, meanwhile: Callable[[], Awaitable[None]] | None = None) -> None:
        self.calls: list[Call] = []
        self.effects: set[bytes] = set()
        self.moments = 0
        self._at = at
        self._meanwhile = meanwhile

    async def moment(self, *_: object) -> None:
        """Let a moment pass, or let happen what happens at it."""
        self.moments += 1
        if self.moments - 1 == self._at and self._meanwhile is not None:
            with anyio.CancelScope(shield=True):
                await self._meanwhile()

    async def act(self, record: Any, call: Call) -> Any:
        self.calls.append(call)
        await self.moment()
        if call.step == ("try",):
            raise ValueError("never")
        self.effects.add(call.key)
        return {"n": record["n"] + 1}

    def stage(self, store: ThreadStore | None = None, **options: Any) -> Stage:
        """A process that runs the plan on a store."""
        rows = [Transition(here, f"to-{there}", there, on_entry=self.act) for here, there in permutations("abcde", 2)]
        steps, panels = everything()
        stage = Stage(*steps, panels=panels, machine=Machine("a", rows), judge=unless_wrong, **options)
        stage.options["peers"] = {"anna": Learner(self, ANNA, stage.clock), "ben": Learner(self, BEN, stage.clock)}
        stage.store.store = MemoryStore() if store is None else store
        stage.store.before = stage.store.after = self.moment
        return stage


class Learner(ScriptedPeer):
    """A peer, of which anna understands only at the second try where nobody else is asked meanwhile."""

    def __init__(self, world: Everything, who: Identity, clock: Clock) -> None:
        super().__init__(who, clock=clock)
        self._world = world

    async def ack(self, delivery: Delivery) -> Any:
        await self._world.moment()
        wrong = delivery.correction is None and delivery.message.record.id == "start"
        self._script = iter(["wrong" if wrong else "right"])
        return await super().ack(delivery)
