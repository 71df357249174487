"""Cases at random: plans that can be built, machines that mostly fit them, and what happens in a run of them.

All chance comes from one function, which picks a number below another: Hypothesis', so that what fails is made small,
or a generator's, which is many times faster. 0 always is the simplest choice.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from random import Random
from typing import Any, TypeVar

from hypothesis import strategies as st

from tests.flow.model import PEERS, SECOND, STATUSES, Answer, Case, Group, Part, Round, Script

T = TypeVar("T")

APPROVERS = ("cara", "emil")
QUANTUM = SECOND // 10
JUNK = ("nothing", "stranger", "colleague", "other bytes", "other thread", "stale", "bent", "message")
TROUBLES = ("decline", "escalate", "raise", "judge raises", "hand it on", "silence")
SLIPS = ("entry", "exit", "guard", "odd", "type", "no")
"""How firing can go wrong; trying again helps with all but the last."""


@dataclass(frozen=True)
class Chance:
    """Makes cases.

    Attributes:
        pick: `pick(n)` gives a number from 0 to n - 1.
        trouble: how likely it is that something goes wrong for good: one in so many times.
        once: whether some steps are to run once.
        asking: whether `anybody` is asked, one recipient `alone` at a time, or several who all accept (`calm`).
    """

    pick: Callable[[int], int]
    trouble: int = 12
    once: bool = False
    asking: str = "anybody"

    def one(self, things: Sequence[T]) -> T:
        return things[self.pick(len(things))]

    def some(self, things: Sequence[T], least: int = 0, most: int = 9) -> tuple[T, ...]:
        """Return different ones of the things, in their order."""
        count = least + self.pick(min(most, len(things)) - least + 1) if len(things) > least else len(things)
        return tuple(sorted(self.shuffled(things)[:count], key=things.index))

    def shuffled(self, things: Iterable[T]) -> tuple[T, ...]:
        left = list(things)
        return tuple(left.pop(self.pick(len(left))) for _ in range(len(left)))

    def seldom(self, of: int) -> bool:
        return self.pick(of) == of - 1

    def words(self, good: Sequence[T], bad: Sequence[T]) -> tuple[T, ...]:
        """Return up to three words, of which one in a while is a bad one."""
        return tuple(self.one(bad if self.seldom(self.trouble) else good) for _ in range(1 + self.pick(3)))

    # Steps

    def case(self, depth: int = 3) -> Case:
        script = self.script(depth)
        slots = (("guard", "exit", "entry"), ("entry",), ("guard",), ("guard", "exit"), ())
        kinds = tuple(self.one(slots) for _ in range(1 + self.pick(3)))
        absent, double = (self.pairs() if self.seldom(8) else () for _ in range(2))
        absent = tuple(pair for pair in absent if pair[0] != 0)  # each status is reached from the first
        caps = (self.one([0, 0, 0, 0, 9, 30]), self.one([0, 0, 0, 0, 2, 5]))
        return Case(script, kinds, absent, double, caps, APPROVERS[: self.pick(3)], self.seldom(4))

    def pairs(self) -> tuple[tuple[int, int], ...]:
        return tuple((self.one(STATUSES), self.one(STATUSES)) for _ in range(self.pick(9)))

    def script(self, depth: int) -> Script:
        """Return a plan in which each step needs earlier ones, a panel is of neighbours, and then all are shuffled."""
        size = 1 + self.pick(6 if depth == 3 else 3)
        names = self.shuffled("abcdef"[:size])
        targets = self.shuffled(STATUSES[1:])
        made: list[Part] = []
        panels: list[Group] = []
        while len(made) < size:
            target = self.one(STATUSES) if self.seldom(12) else targets[len(made)]
            before = [part.id for part in made]
            if self.seldom(4):
                count = 1 + self.pick(min(size - len(made), 3))
                members = self.members(names[len(made) : len(made) + count], before, target)
                needs_reducer = count > 1 or self.seldom(2)
                reducer = self.words(["join"], ["raise", "odd"]) if needs_reducer else None
                panels.append(Group(self.shuffled(part.id for part in members), reducer))
                made += members
            else:
                made.append(self.part(names[len(made)], before, target, depth))
        routed = [self.routed(part, made, panels) for part in made]
        return Script(self.shuffled(routed), tuple(panels))

    def members(self, names: Sequence[str], before: Sequence[str], target: int) -> list[Part]:
        gate = self.one(["before", "before", "none"]) if self.asking != "alone" or len(names) == 1 else "none"
        members = []
        for number, name in enumerate(names):
            part = Part(name, target, self.needs(before), gate=gate, firing=(self.firing(1),), takes=self.takes())
            part = replace(part, once=self.once and self.seldom(3))
            if part.needs and self.seldom(3):
                part = replace(part, when="finished")
            members.append(self.telling(part, 1, number) if gate != "none" else part)
        return members

    def needs(self, before: Sequence[str]) -> tuple[str, ...]:
        return self.some(before, 1, 3) if before and not self.seldom(4) else ()

    def takes(self) -> int:
        return self.one([0, 0, 1, 5]) * SECOND

    def part(self, name: str, before: Sequence[str], target: int, depth: int) -> Part:
        needs = self.needs(before)
        when = self.one(["succeeded", "succeeded", "finished", "failed"]) if needs else "succeeded"
        visits = 1 + self.pick(2)
        gate = self.one(["before", "before", "after", "none"])
        part = Part(name, target, needs, gate=gate, when=when, takes=self.takes(), once=self.once and self.seldom(3))
        if depth > 1 and self.seldom(4):
            part = replace(part, target=None, sub=self.script(depth - 1))
            if not self.seldom(2):
                part = replace(part, rounds=(1 + self.pick(3), self.words(["on", "on", "stop"], ["raise", "odd"])))
        else:
            part = replace(part, attempts=self.one([1, 1, 2, 3]))
        part = replace(part, firing=tuple(self.firing(part.attempts) for _ in range(visits)))
        return self.telling(part, visits) if gate != "none" else part

    def firing(self, attempts: int) -> tuple[str, ...]:
        """Return how each attempt goes; what follows the last one is like it."""
        if attempts > 1 and self.seldom(2):
            before = tuple(self.one(SLIPS[:-1]) for _ in range(self.pick(attempts)))
            return (*before, self.one(["fine", "fine", "fine", "entry", "no"]))
        return (self.one(SLIPS) if self.seldom(self.trouble // 2) else "fine",)

    def routed(self, part: Part, made: Sequence[Part], panels: Sequence[Group]) -> Part:
        together = {name for panel in panels for name in panel.steps}
        direct = [other for other in made if part.id in other.needs]
        open_to_it = [other.id for other in direct if other.when != "failed"]
        fits = part.sub is None and open_to_it and not together & {part.id, *(other.id for other in direct)}
        if not fits or not self.seldom(2):
            return part
        choices = [self.some(open_to_it) for _ in range(2)]
        return replace(part, route=self.words(choices, [("!raise",), ("!odd",), ("!stranger",)]))

    # Messages

    def telling(self, part: Part, visits: int, number: int = 0) -> Part:
        """Return a step that says something; `number` is its place among those that are asked for at once."""
        timeout = self.one([None, 60, 7]) if self.asking != "calm" else None
        corrections = self.one([1, 1, 0, 2])
        says = self.words(["text", "draft"], ["raise", "odd"]) if self.seldom(2) else ()
        return replace(
            part,
            to=(self.one(PEERS),) if self.asking == "alone" else self.some(PEERS),
            size=1 + self.pick(9),
            says=says,
            corrections=corrections,
            timeout=timeout and timeout * SECOND,
            answers=tuple(self.answers(timeout is not None, corrections, number) for _ in range(visits)),
        )

    def answers(self, limited: bool, corrections: int, number: int) -> Mapping[str, Answer]:
        """Return how each recipient answers; no two of them, nor of those who are asked beside them, at one time."""
        plain = not self.seldom(2)
        most = min(corrections, 2) if self.asking == "calm" else 2
        return {
            who: Answer(
                (0 if plain else self.pick(20)) * QUANTUM + 7 ** (3 * number + place),
                () if plain else tuple(self.round(limited) for _ in range(self.pick(most + 1))),
            )
            for place, who in enumerate(PEERS)
        }

    def round(self, limited: bool) -> Round:
        junk = tuple(self.one(JUNK) for _ in range(1 + self.pick(6))) if self.seldom(6) else ()
        word = "wrong" if self.seldom(6) else "right"
        if self.asking != "calm" and self.seldom(self.trouble // 2):
            word = self.one(TROUBLES if limited else TROUBLES[:-1])
        return Round(junk, word, self.one([0, 0, 0, 3, 40]) * QUANTUM)


@cache
def _below(number: int) -> st.SearchStrategy[int]:
    return st.integers(0, number - 1)


@st.composite
def cases(draw: st.DrawFn, **options: Any) -> Case:
    return Chance(lambda number: draw(_below(number)) if number > 1 else 0, **options).case()


def case_at(seed: int, **options: Any) -> Case:
    return Chance(Random(seed).randrange, **options).case()
