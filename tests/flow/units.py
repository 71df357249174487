"""What the tests of whole plans share: a machine in which every status leads to every other, an action that fails where
it is told to and remembers what it was told, and short ways to say what became of steps."""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import permutations
from typing import Any

from flow import Agent, Call, Machine, Plan, Run, Step, Transition
from flow.progress import Entry, read_entry
from tests.flow.stage import CARD, OWNER, Stage, ThreadStore

ALWAYS = math.inf


class Odd(Exception):
    """An error that nothing but a test raises."""


def quiet(id_: str, *needs: str, **fields: Any) -> Step:
    """Return a step that says nothing and, unless it has a sub-plan, leads to the status that is called as it is."""
    return _step(id_, needs, {"gate": "none"} | fields)


def told(id_: str, *needs: str, **fields: Any) -> Step:
    """Return a step that is told to anna before it fires, and leads to the status that is called as it is."""
    return _step(id_, needs, {"payload": f"do {id_}", "to": ["anna"]} | fields)


def _step(id_: str, needs: Iterable[str], fields: dict[str, Any]) -> Step:
    target = {} if "sub" in fields else {"target": id_}
    return Step(id_, needs=list(needs), **target | fields)


def named(name: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function under a name of its own, as a plan's document needs one."""
    function.__name__ = name
    return function


def routing(*chosen: str) -> Callable[[Any], Any]:
    """Return a route that always chooses these."""
    return named("to_" + "_".join(chosen), lambda record: list(chosen))


def targets(plan: Plan) -> Iterator[str]:
    """Give the target of every step of a plan and of its sub-plans."""
    for step in plan.steps:
        if step.sub is not None:
            yield from targets(step.sub)
        elif step.target is not None:
            yield step.target


def net(plan: Plan, **parts: Any) -> Machine:
    """Return a machine in which each of a plan's targets can be reached from everywhere, by rows with these parts."""
    statuses = ["start", *dict.fromkeys(targets(plan))]
    return Machine(
        "start", [Transition(a, f"to-{b}", b, **parts) for a, b in permutations(statuses, 2) if b != "start"]
    )


class PlanStage(Stage):
    """A stage for a plan: each firing adds its path to the list that is the record, unless it is to fail.

    Args:
        fail: how many firings raise `Odd`, by path as text.

    Attributes:
        calls: what the action was told, in order.
        acting: awaited by the action with its call, before all else.
    """

    def __init__(self, plan: Plan, *, fail: Mapping[str, float] | None = None, **options: Any) -> None:
        machine = options.pop("machine", None) or net(plan, on_entry=self.act)
        super().__init__(machine=machine, **{"record": ["begun"]} | options)
        self.agent = Agent(OWNER, CARD, plan)
        self.calls: list[Call] = []
        self.acting: Callable[[Call], Any] | None = None
        self._left = Counter(fail or {})

    async def act(self, record: Any, call: Call) -> Any:
        self.calls.append(call)
        if self.acting is not None:
            await self.acting(call)
        path = "/".join(call.step)
        if self._left[path] > 0:
            self._left[path] -= 1
            record.append("spoilt")
            raise Odd(f"{path} broke")
        return [*record, path]

    @property
    def fired(self) -> list[str]:
        """The paths of the calls."""
        return ["/".join(call.step) for call in self.calls]

    async def log(self) -> list[Entry]:
        """The private state in the store."""
        return await log(self.store)


async def log(store: ThreadStore) -> list[Entry]:
    return [read_entry(state.data, number) for number, state in enumerate(await store.states("t"))]


def became(run: Run) -> dict[str, str]:
    """Return what became of each step of a run, by path."""
    return {path: outcome.became for path, outcome in run.outcomes.items()}
