"""A second telling of spec/flow.md: what a run does, as plain recursion over a script in which all that happens stands.

It knows nothing of stores, tasks, clocks or signatures. It was written from the rules and not from the runner, so that
where the two differ, one of them has misread.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import count
from typing import Any, NamedTuple

Path = tuple[str, ...]

SECOND = 10**9
PAUSES = (SECOND // 10, SECOND // 2, 2 * SECOND, 10 * SECOND)
LAST_PAUSE = 30 * SECOND


# What happens: the script


@dataclass(frozen=True)
class Round:
    """What a recipient does when it is asked, and what the judge makes of it.

    Attributes:
        junk: what it answers first, each of which is no valid ack.
        word: then, `right`, `wrong`, `decline`, `escalate`, `raise` or `silence`; or what the judge hands to the
            approvers (`hand it on`), or raises at (`judge raises`).
        thinks: how long the judge takes, in ns.
    """

    junk: tuple[str, ...] = ()
    word: str = "right"
    thinks: int = 0


@dataclass(frozen=True)
class Answer:
    """How a recipient answers one message: round by round, each time after `pace` ns; after the last one, rightly."""

    pace: int
    rounds: tuple[Round, ...] = ()

    def round(self, number: int) -> Round:
        return self.rounds[number] if number < len(self.rounds) else Round()


@dataclass(frozen=True)
class Part:
    """A step, and what happens to it.

    What may happen differently each time is a list: of payload function, route and guard of the loop the entry is
    chosen by the length of the record's log, of firings and answers by the rounds in the step's path.

    Attributes:
        says: `text`, `draft`, `raise` or `odd`, by a function of the record; none for a fixed text.
        firing: for each attempt `fine`, or `no`, `guard`, `odd`, `exit`, `entry`, `type` for how it goes wrong.
        takes: how long its actions take, in ns.
        route: names, or `!raise`, `!odd` or `!stranger`.
        rounds: at most, and whether the guard says `on`, `stop`, `raise` or `odd`.
    """

    id: str
    target: int | None = None
    needs: tuple[str, ...] = ()
    to: tuple[str, ...] = ()
    gate: str = "before"
    when: str = "succeeded"
    size: int = 1
    says: tuple[str, ...] = ()
    corrections: int = 1
    timeout: int | None = None
    answers: tuple[Mapping[str, Answer], ...] = ()
    firing: tuple[tuple[str, ...], ...] = (("fine",),)
    takes: int = 0
    route: tuple[tuple[str, ...], ...] | None = None
    attempts: int = 1
    sub: "Script | None" = None
    rounds: tuple[int, tuple[str, ...]] | None = None
    once: bool = False


@dataclass(frozen=True)
class Group:
    """A panel: its steps, and what the reducer does by the length of the log: `join`, `raise` or `odd`."""

    steps: tuple[str, ...]
    reducer: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Script:
    """A plan: its steps as declared, and its panels."""

    parts: tuple[Part, ...]
    panels: tuple[Group, ...] = ()

    def panel(self, part: Part) -> Group | None:
        return next((panel for panel in self.panels if part.id in panel.steps), None)

    def units(self) -> list[list[Part]]:
        """Return steps that are done together, in the order of declaration."""
        units: list[list[Part]] = []
        for part in self.parts:
            panel = self.panel(part)
            together = [other for other in self.parts if panel and other.id in panel.steps] or [part]
            if together not in units:
                units.append(together)
        return units


@dataclass(frozen=True)
class Case:
    """A run.

    Attributes:
        kinds: the slots (`guard`, `exit`, `entry`) of a row, chosen by its two statuses.
        absent: pairs of statuses with no row between them; every other pair has one.
        double: pairs with two.
        caps: of bytes and of messages.
        heart: whether a monitor is watched.
    """

    script: Script
    kinds: tuple[tuple[str, ...], ...] = (("guard", "exit", "entry"),)
    absent: tuple[tuple[int, int], ...] = ()
    double: tuple[tuple[int, int], ...] = ()
    caps: tuple[int, int] = (0, 0)
    approvers: tuple[str, ...] = ()
    heart: bool = False

    def rows(self, source: int, target: int) -> list[tuple[str, ...]]:
        """Return the slots of each row between two statuses."""
        if source == target or (source, target) in self.absent:
            return []
        return [nth(self.kinds, source + target)] * (1 + ((source, target) in self.double))


PEERS = ("anna", "ben", "dora")
STATUSES = range(9)


def nth(entries: Sequence[Any], number: int) -> Any:
    return entries[number % len(entries)]


def joined(path: Path) -> str:
    return "/".join(path)


def visit(path: Path) -> int:
    """Return how many rounds were gone through before this one, those of all loops around the step together."""
    return sum(int(element.partition("#")[2] or 1) - 1 for element in path)


# What becomes of it: the story


class Fault(NamedTuple):
    """A failure as data."""

    step: str
    error: str
    attempts: int | None


class Settled(NamedTuple):
    """A settlement: of a message, by its id, or of a step, by its path."""

    what: str
    outcome: str
    attempts: int | None
    status: str | None


@dataclass(frozen=True)
class Line:
    """A record of the thread, in so far as it can be told without its bytes."""

    kind: str
    what: str = ""
    who: tuple[str, ...] = ()
    path: str = ""
    payload: str = ""
    settled: tuple[Settled, ...] = ()


class Became(NamedTuple):
    """What became of a step, as the run tells it."""

    became: str
    status: str
    attempts: int | None
    message: str | None
    acks: tuple[str, ...]
    failure: Fault | None


@dataclass
class Story:
    """All that a run leaves behind.

    Attributes:
        raised: the name of the error's type, or None.
        calls: how often each function was called: by path, slot and attempt, or by its name.
        reads: what was handed to handlers, by path.
    """

    raised: str | None = None
    status: str = "s0"
    log: list[str] = field(default_factory=list)
    step: str | None = None
    sealed: str | None = None
    lines: list[Line] = field(default_factory=list)
    outcomes: dict[str, Became] = field(default_factory=dict)
    calls: Counter[Any] = field(default_factory=Counter)
    reads: dict[str, Fault | None] = field(default_factory=dict)
    events: list[tuple[str, str]] = field(default_factory=list)


class Failing(Exception):
    """A unit failed of something that may be caught."""

    def __init__(self, fault: Fault) -> None:
        self.fault = fault


class Ending(Exception):
    """The run is over; `sealed` is None where its thread stays open."""

    def __init__(self, raised: str, sealed: str | None, step: str | None = None) -> None:
        self.raised, self.sealed, self.step = raised, sealed, step


class Unfired(Exception):
    """A firing failed for good."""

    def __init__(self, error: str, attempts: int | None) -> None:
        self.error, self.attempts = error, attempts


class Saying(NamedTuple):
    part: Part
    path: Path
    id: str


# What is answered, and when


class Moment(NamedTuple):
    """An ack of a message: when it came, when the judge was through with it, and what the judge said."""

    came: int
    judged: int
    who: str
    id: str
    answer: str
    ruling: str | None


class Last(NamedTuple):
    """How the talk with one recipient ended, and when."""

    time: int
    how: str


def talk(part: Part, id: str, who: str, answer: Answer) -> tuple[list[Moment], Last]:  # noqa: A002
    """Play out how one recipient answers one message, if nothing cuts it short."""
    time = 0
    moments: list[Moment] = []
    for number in count():
        now = answer.round(number)
        for asked in range(len(now.junk)):
            time += answer.pace + (PAUSES[asked] if asked < len(PAUSES) else LAST_PAUSE)
        time += answer.pace
        came, judged = time, time + now.thinks
        match now.word:
            case "silence":
                return moments, Last(10**20, "silent")
            case "raise":
                return moments, Last(came, "raised")
            case "escalate":
                return moments, Last(came, "escalated")
            case "decline":
                return [*moments, Moment(came, came, who, id, "declines", None)], Last(came, "rejected")
            case "judge raises":
                return [*moments, Moment(came, judged, who, id, "accepts", None)], Last(judged, "raised")
            case "hand it on":
                return [*moments, Moment(came, judged, who, id, "accepts", None)], Last(judged, "escalated")
            case "right":
                return [*moments, Moment(came, judged, who, id, "accepts", "confirm")], Last(judged, "confirmed")
        moments.append(Moment(came, judged, who, id, "accepts", "correct"))
        if number == part.corrections:
            return moments, Last(judged, "rejected")
        time = judged
    raise AssertionError


def cut(moments: list[Moment], last: Last, end: int, how: str) -> tuple[list[Moment], Last]:
    """Leave out what comes after a time; an ack that the judge still has then gets no ruling."""
    there = [moment for moment in moments if moment.came <= end]
    there = [moment if moment.judged <= end else moment._replace(judged=end, ruling=None) for moment in there]
    return there, last if last.time <= end else Last(end, how)


# The run


class Model:
    """Plays a case."""

    def __init__(self, case: Case) -> None:
        self.case = case
        self.story = Story()
        self.owed: list[Settled] = []
        self.standing = 0
        self.said = [0, 0]
        self.ids: set[str] = set()
        self.acks: dict[str, set[str]] = {}

    def play(self) -> Story:
        story = self.story
        self.chain(Line("open"))
        ending: Ending | None = None
        try:
            self.plan(self.case.script, (), 0, [])
        except Failing as failing:
            ending = Ending("StepFailed", "failed", failing.fault.step)
        except Ending as other:
            ending = other
        if ending is None:
            story.sealed = "completed"
        else:
            story.raised, story.sealed, story.step = ending.raised, ending.sealed, ending.step
        if story.sealed:
            self.chain(Line("seal", story.sealed, path=story.status))
        if story.sealed == "completed" and self.said[1]:
            story.events.append(("verified", ""))
        return story

    def chain(self, line: Line) -> None:
        self.story.lines.append(replace(line, settled=tuple(self.owed)))
        self.owed, self.standing = [], 0

    def pause(self) -> None:
        if self.owed or self.standing:
            self.chain(Line("settle"))

    # Plans

    def plan(self, script: Script, above: Path, status: int, log: list[str]) -> tuple[int, list[str]]:
        """Take the units of a plan one after the other; return the status and the log that they leave."""
        fate: dict[str, str] = {}
        faults: dict[str, Fault] = {}

        def handled(name: str) -> bool:
            handlers = [part for part in script.parts if part.when == "failed" and name in part.needs]
            return any(fate.get(part.id) != "skipped" for part in handlers)

        self.stand(status, log)
        while unit := next((unit for unit in script.units() if self.ready(unit, fate)), None):
            reads = {part.id: self.reading(script, part, faults) for part in unit}
            barred: set[str] = set()
            try:
                status, log, barred = self.unit(script, unit, above, status, log, reads)
                fate |= {part.id: "succeeded" for part in unit}
            except Failing as failing:
                self.stand(status, log)
                fate |= {part.id: "failed" for part in unit}
                faults |= {part.id: failing.fault for part in unit}
                if not all(handled(part.id) for part in unit):
                    raise
            self.stand(status, log)
            self.skip(script, above, fate, barred, status)
            self.story.events += [("completed", joined((*above, part.id))) for part in unit]
            for part in script.parts:
                if fate.get(part.id) == "failed" and not handled(part.id):
                    raise Failing(faults[part.id])
        assert len(fate) == len(script.parts)
        return status, log

    def stand(self, status: int, log: list[str]) -> None:
        self.story.status, self.story.log = f"s{status}", log

    def ready(self, unit: list[Part], fate: Mapping[str, str]) -> bool:
        return all(part.id not in fate and all(need in fate for need in part.needs) for part in unit)

    def admitted(self, part: Part, fate: Mapping[str, str]) -> bool:
        fates = [fate[need] for need in part.needs]
        match part.when:
            case "succeeded":
                return all(one == "succeeded" for one in fates)
            case "finished":
                return all(one in ("succeeded", "skipped") for one in fates)
        return "failed" in fates

    def skip(self, script: Script, above: Path, fate: dict[str, str], barred: set[str], status: int) -> None:
        """Skip what a route barred and what is ready and not admitted, until there is no more of it."""
        while True:
            for unit in script.units():
                if any(part.id in fate for part in unit):
                    continue
                out = any(part.id in barred for part in unit)
                if out or (self.ready(unit, fate) and not all(self.admitted(part, fate) for part in unit)):
                    for part in unit:
                        fate[part.id] = "skipped"
                        self.settle((*above, part.id), "skipped", None, status)
                        self.became((*above, part.id), "skipped", None, status)
                    break
            else:
                return

    def reading(self, script: Script, part: Part, faults: Mapping[str, Fault]) -> Fault | None:
        if part.when != "failed":
            return None
        return next(faults[other.id] for other in script.parts if other.id in part.needs and other.id in faults)

    # Units

    def unit(
        self,
        script: Script,
        unit: list[Part],
        above: Path,
        status: int,
        log: list[str],
        reads: Mapping[str, Fault | None],
    ) -> tuple[int, list[str], set[str]]:
        """Do one step, or all of a panel; return the status and the log reached, and what a route leaves out."""
        first = unit[0]
        paths = {part.id: (*above, part.id) for part in unit}
        name = ", ".join(map(joined, paths.values()))
        attempts: dict[str, int | None] = dict.fromkeys(paths)
        sayings: list[Saying] = []

        def settle(outcome: str, status: int, fault: Fault | None = None) -> None:
            for part in unit:
                self.settle(paths[part.id], outcome, attempts[part.id], status, fault, sayings)

        def failing(step: str, error: str) -> Failing:
            fault = Fault(joined(paths[step]), error, attempts[step])
            settle("failed", status, fault)
            return Failing(fault)

        def over(raised: str, sealed: str) -> Ending:
            return Ending(raised, sealed, name)

        def drafts(log: list[str]) -> dict[str, str]:
            made = {}
            for part in unit:
                try:
                    made[part.id] = self.draft(part, log)
                except Unfired as unfired:
                    raise failing(part.id, unfired.error) from None
            return made

        target, start = first.target, log
        if first.sub is not None:
            try:
                target, start = self.rounds(first, paths[first.id], log)
            except Failing as inside:
                settle("failed", status, inside.fault)
                raise
        assert target is not None
        self.stand(status, start)
        stays = first.sub is not None and target == status
        rows = self.case.rows(status, target)
        if not stays and len(rows) != 1:
            raise over("NoTransition", "failed")
        said: dict[str, str] = {}
        if first.gate == "before":
            said = drafts(start)
        if first.gate != "none" and not self.fits(sum(map(len, said.values())), len(unit)):
            raise over("OverBudget", "over_budget")
        if first.gate == "before":
            sayings += self.say(unit, paths, said, "request")
            self.ask(sayings, name, lambda: settle("failed", status))

        reached = start
        move = None
        if not stays:
            reached = self.fire(script, unit, paths, rows[0], start, attempts, reads, failing)
            move = ("move", f"s{status}>s{target}")
        self.stand(target, reached)
        if first.gate == "after":
            said = drafts(reached)
            if not self.fits(len(said[first.id]), 1):
                settle("failed", target)
                self.story.events += [move] if move else []
                raise over("OverBudget", "over_budget")
            sayings += self.say(unit, paths, said, "assert", move)
            move = None
            self.ask(sayings, name, lambda: settle("failed", target))
        barred = self.route(script, first, reached, failing) if first.route is not None else set()
        settle("succeeded", target)
        self.story.events += [move] if move else []
        return target, reached, barred

    def fire(
        self,
        script: Script,
        unit: list[Part],
        paths: Mapping[str, Path],
        slots: tuple[str, ...],
        start: list[str],
        attempts: dict[str, int | None],
        reads: Mapping[str, Fault | None],
        failing: Callable[[str, str], Failing],
    ) -> list[str]:
        """Fire each step of a unit, each on its own copy, and make one log of what they leave."""
        logs: dict[str, list[str]] = {}
        errors: dict[str, str] = {}
        for part in unit:
            if slots:
                self.story.reads[joined(paths[part.id])] = reads[part.id]
            try:
                logs[part.id], attempts[part.id] = self.shoot(part, paths[part.id], slots, start)
            except Unfired as unfired:
                errors[part.id], attempts[part.id] = unfired.error, unfired.attempts
        for step, error in errors.items():
            raise failing(step, error)
        panel = script.panel(unit[0])
        if panel is None or panel.reducer is None:
            return logs[unit[0].id]
        self.story.calls["reducer", unit[0].id] += 1
        match nth(panel.reducer, len(start)):
            case "raise":
                raise failing(unit[0].id, "Broken")
            case "odd":
                raise failing(unit[0].id, "MachineError")
        return [*start, *(line for part in unit for line in logs[part.id][len(start) :]), "joined"]

    def route(self, script: Script, part: Part, log: list[str], failing: Callable[[str, str], Failing]) -> set[str]:
        """Return the steps that a route leaves out."""
        assert part.route is not None
        self.story.calls["route", part.id] += 1
        word = nth(part.route, len(log))
        if word == ("!raise",):
            raise failing(part.id, "Broken")
        if word == ("!odd",):
            raise failing(part.id, "TypeError")
        if word == ("!stranger",):
            raise failing(part.id, "PlanError")
        return {other.id for other in script.parts if part.id in other.needs and other.id not in word}

    def rounds(self, part: Part, path: Path, log: list[str]) -> tuple[int, list[str]]:
        """Run a sub-plan, as often as its loop says."""
        assert part.sub is not None
        most, words = part.rounds or (1, ("stop",))
        for number in range(1, most + 1):
            at = path if number == 1 else (*path[:-1], f"{path[-1]}#{number}")
            target, log = self.plan(part.sub, at, 0, log)
            if number < most:
                word = nth(words, len(log))
                self.story.calls["loop", joined(at)] += 1
                if word in ("raise", "odd"):
                    fault = Fault(joined(path), {"raise": "Broken", "odd": "MachineError"}[word], None)
                    raise Failing(fault)
                if word == "stop":
                    break
        return target, log

    def draft(self, part: Part, log: list[str]) -> str:
        if not part.says:
            return "x" * part.size
        self.story.calls["says", part.id] += 1
        match nth(part.says, len(log)):
            case "raise":
                raise Unfired("Broken", None)
            case "odd":
                raise Unfired("PlanError", None)
        return f"{'x' * part.size}{len(log)}"

    def shoot(self, part: Part, path: Path, slots: tuple[str, ...], log: list[str]) -> tuple[list[str], int | None]:
        words = nth(part.firing, visit(path))
        acted = False
        for attempt in range(1, part.attempts + 1):
            word = words[min(attempt, len(words)) - 1]
            new, error = list(log), None
            for slot in ("guard", "exit", "entry"):
                if slot not in slots or error:
                    continue
                self.story.calls[path, slot, attempt] += 1
                acted = acted or slot != "guard"
                new += [f"{joined(path)}:{slot}"] if slot != "guard" else []
                if slot == "guard":
                    error = {"no": "GuardRefused", "guard": "Broken", "odd": "MachineError"}.get(word)
                elif word == slot:
                    error = "Broken"
                elif slot == "entry" and word == "type":
                    error = "MachineError"
            if error is None:
                return new, attempt if acted else None
            if error == "GuardRefused":
                break
        assert error is not None
        raise Unfired(error, attempt if acted else None)

    # Messages

    def fits(self, size: int, messages: int) -> bool:
        most_bytes, most_messages = self.case.caps
        return not (0 < most_bytes < self.said[0] + size or 0 < most_messages < self.said[1] + messages)

    def say(
        self,
        unit: list[Part],
        paths: Mapping[str, Path],
        said: Mapping[str, str],
        intent: str,
        move: tuple[str, str] | None = None,
    ) -> list[Saying]:
        sayings = []
        for part in unit:
            ids = (part.id if number == 1 else f"{part.id}#{number}" for number in count(1))
            name = next(one for one in ids if one not in self.ids)
            self.ids.add(name)
            self.acks[name] = set()
            self.said[0] += len(said[part.id])
            self.said[1] += 1
            sayings.append(Saying(part, paths[part.id], name))
            to = tuple(sorted(part.to or PEERS))
            self.chain(Line(intent, name, to, joined(paths[part.id]), said[part.id]))
        self.story.events += [move] if move else []
        self.story.events += [("delivered", saying.id) for saying in sayings]
        return sayings

    def ask(self, sayings: list[Saying], name: str, settle: Callable[[], None]) -> None:
        """Play out who answers when; return once every recipient is confirmed."""
        talks: list[tuple[str, list[Moment], Last]] = []
        for part, path, message in sayings:
            for who in part.to or PEERS:
                moments, last = talk(part, message, who, nth(part.answers, visit(path))[who])
                if part.timeout is not None:
                    moments, last = cut(moments, last, part.timeout, "silent")
                talks.append((message, moments, last))
        end = min((last.time for _, _, last in talks if last.how in ("rejected", "raised")), default=None)
        if end is not None:
            talks = [(message, *cut(moments, last, end, "cut")) for message, moments, last in talks]
        for moment in sorted((m for _, moments, _ in talks for m in moments), key=lambda m: (m.judged, not m.ruling)):
            self.story.lines.append(Line("ack", moment.answer, (moment.who,), moment.id))
            self.story.lines += [Line(moment.ruling)] if moment.ruling else []
            self.standing += 1
            self.acks[moment.id].add(moment.who)
            self.story.events.append(("acked", moment.who))
        ended = {last.how for _, _, last in talks}
        if "rejected" in ended:
            settle()
            raise Ending("Rejected", "rejected", name)
        if "raised" in ended:
            self.pause()
            raise Ending("Broken", None, name)
        if "escalated" in ended:
            handed_on = {message for message, _, last in talks if last.how == "escalated"}
            for message in [saying.id for saying in sayings if saying.id in handed_on and self.case.approvers]:
                self.chain(Line("escalate", f"{message}#escalate", tuple(sorted(self.case.approvers)), message, "ask"))
                self.story.events.append(("delivered", f"{message}#escalate"))
            raise Ending("Escalated", None, name)
        if "silent" in ended:
            self.pause()
            raise Ending("AckTimeout", None, name)

    # What became of a step

    def settle(
        self,
        path: Path,
        outcome: str,
        attempts: int | None,
        status: int,
        fault: Fault | None = None,
        sayings: Sequence[Saying] = (),
    ) -> None:
        message = next((saying.id for saying in sayings if saying.path == path), None)
        self.owed.append(Settled(message or joined(path), outcome, attempts, f"s{status}"))
        self.became(path, outcome, attempts, status, message, fault)

    def became(
        self,
        path: Path,
        outcome: str,
        attempts: int | None,
        status: int,
        message: str | None = None,
        fault: Fault | None = None,
    ) -> None:
        acks = tuple(sorted(self.acks.get(message or "", ())))
        self.story.outcomes[joined(path)] = Became(outcome, f"s{status}", attempts, message, acks, fault)
