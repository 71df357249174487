"""What a run's private state claims, held against its thread and its plan.

The thread is signed and the state is not. So a step is done, or about to be fired, only where the thread bears that
out, and only in the order that the plan sets; what no thread tells (the record, attempts, what a route chose) is
believed (rule D14).
"""

from collections.abc import Sequence
from typing import NoReturn

from flow.errors import StoreError
from flow.plan import Plan, Step, Unit
from flow.progress import Entry, History, Path, Trace
from flow.run import joined
from flow.schedule import Schedule


def check(history: History, plan: Plan, initial: str) -> None:
    """Refuse a state that claims what cannot be.

    Args:
        history: of the run that is to go on.
        plan: the run's.
        initial: the machine's initial status.

    Raises:
        StoreError: `store.state`.
    """
    claims = _Claims(history, initial)
    claims.level(plan, ())
    if claims.unheard:
        _refuse(min(claims.unheard), "cannot have come to it yet")


class _Claims:
    """A walk through the plan, as far as the run came; `unheard` are the steps that it has not met."""

    def __init__(self, history: History, initial: str) -> None:
        self.unheard = set(history.traces)
        self._history = history
        self._initial = initial

    def level(self, plan: Plan, above: Path) -> str | None:
        """Walk the units of a plan; return the status that it led to, or None if the run did not come to its end."""
        schedule, status = Schedule(plan), self._initial
        while (unit := schedule.next()) is not None:
            paths = [(*above, step.id) for step in unit.steps]
            traces = [self._history.of(path) for path in paths]
            self.unheard.difference_update(paths)
            target = unit.steps[0].target or self._rounds(unit.steps[0], paths[0], traces[0])
            for step, path, trace in zip(unit.steps, paths, traces, strict=True):
                self._check_firing(step, path, trace, traces)
            done = traces[0].done
            if any(trace.done is not done for trace in traces) or (done and list(done.at) != paths):
                _refuse(paths[0], "is done without the others of its panel")
            if done is None:
                return None
            if done.outcome == "succeeded":
                if target is None:
                    _refuse(paths[0], "is done before its sub-plan")
                if done.status != target:
                    _refuse(paths[0], "led to another status than its target")
                self._check_success(unit, paths, traces, done, plan)
                skipped = schedule.succeeded(unit, done.chosen)
                status = target
            else:
                if done.status != status:
                    _refuse(paths[0], "failed and changed the status")
                skipped = schedule.failed(unit, done.failed_with)
            self._check_settled(paths, traces, done, [(*above, step.id) for step in skipped])
            if schedule.lost is not None:
                return None
        return status

    def _rounds(self, step: Step, path: Path, trace: Trace) -> str | None:
        """Walk the sub-plan of a step, as often as it ran; return the status that it led to, as `level` does."""
        assert step.sub is not None
        known, number = dict(trace.rounds), 1
        while True:
            inside = path if number == 1 else (*path[:-1], f"{path[-1]}#{number}")
            status = self.level(step.sub, inside)
            if status is None or step.loop is None or number == step.loop.max:
                break
            again = known.pop(number, None)
            if not again:
                status = None if again is None else status
                break
            number += 1
        if known:
            _refuse(path, "had a round that cannot have been")
        return status

    def _check_firing(self, step: Step, path: Path, trace: Trace, traces: Sequence[Trace]) -> None:
        if (trace.fired is not None) != (step.gate == "after" and trace.message is not None):
            _refuse(path, "has fired, or not, otherwise than it reported")
        if trace.fired is not None and step.target is not None and trace.fired.status != step.target:
            _refuse(path, "has fired to another status than its target")
        if step.gate == "before" and trace.attempt and not self._history.is_confirmed(trace):
            _refuse(path, "is confirmed")
        if bool(trace.attempt) != any(other.attempt for other in traces):
            _refuse(path, "fired without the others of its panel")

    def _check_success(
        self, unit: Unit, paths: Sequence[Path], traces: Sequence[Trace], done: Entry, plan: Plan
    ) -> None:
        for step, path, trace in zip(unit.steps, paths, traces, strict=True):
            if step.gate != "none" and not self._history.is_confirmed(trace):
                _refuse(path, "is done")
            chosen = done.chosen or ()
            open_to_it = {other.id for other in plan.dependents(step.id) if other.when != "failed"}
            if (done.chosen is None) != (step.route is None) or not open_to_it.issuperset(chosen):
                _refuse(path, "chose what it cannot choose")

    def _check_settled(
        self, paths: Sequence[Path], traces: Sequence[Trace], done: Entry, skipped: Sequence[Path]
    ) -> None:
        settled = {one.message or one.step: one for one in done.settled}
        escalations = {trace.escalation.address for trace in traces if trace.escalation is not None}
        for path, trace in zip(paths, traces, strict=True):
            own = settled.pop(path if trace.message is None else trace.message.address, None)
            became = "approved" if done.outcome == "succeeded" and trace.escalation is not None else done.outcome
            if own is None or (own.outcome, own.status) != (became, done.status):
                _refuse(path, "is settled")
        if {what for what, one in settled.items() if one.outcome == "skipped"} != set(skipped):
            _refuse(paths[0], "skipped other steps than follow from it")
        for what, one in settled.items():
            if what not in escalations and one.outcome != "skipped" and (one.outcome, done.outcome) != ("failed",) * 2:
                _refuse(paths[0], "settles what is not its own")


def _refuse(path: Path, claim: str) -> NoReturn:
    raise StoreError(
        f"the run's private state says that step {joined(path)!r} {claim}, which its thread and plan do not bear out: "
        "the store was changed; its thread can still be exported, and closed",
        code="store.state",
    )
