"""The machine and the plan that an agent document describes, built as a program would build them."""

from typing import Final

from flow.agentcode import Code
from flow.agentfaults import Faults, close, shown
from flow.agenttables import AgentTables, LoopTable, PlanTable, RetryTable, StepTable
from flow.errors import FlowError, MachineError, PlanError
from flow.machine import Machine, Transition
from flow.plan import MAX_DEPTH, Loop, Panel, Plan, Retry, Step
from flow.tomlplaces import KeyPath

_ELSEWHERE: Final = Plan([Step("elsewhere", target="elsewhere", gate="none")])
"""Stands for a sub-plan that cannot be built, so that the steps around it can be looked at all the same."""


def build_machine(tables: AgentTables, code: Code, faults: Faults) -> Machine | None:
    """Build the machine, or note why it cannot be."""
    where: KeyPath = ("machine", "rows")
    rows = [
        Transition(
            row.source,
            row.trigger,
            row.target,
            code.function(row.guard, (*where, number, "guard")),
            code.function(row.on_exit, (*where, number, "on_exit")),
            code.function(row.on_entry, (*where, number, "on_entry")),
        )
        for number, row in enumerate(tables.machine.rows)
    ]
    try:
        return Machine(tables.machine.initial, rows)
    except MachineError as error:
        place: KeyPath = ("machine", "initial") if error.row is None else (*where, error.row)
        faults.note(error.code, place, f"machine: {error.args[0]}")
        return None


def build_plan(tables: AgentTables, code: Code, faults: Faults) -> Plan | None:
    """Build the plan with all its sub-plans, or note why it cannot be."""
    builder = _Builder(tables, code, faults)
    plan = builder.plan(tables, ())
    for name in tables.plans:
        if name not in builder.subs:
            faults.note_field("agent.plan", ("plans", name), "no step names it as its sub", severity="warning")
            builder.sub(name, ())
    return plan


def place_of(tables: AgentTables, path: str) -> KeyPath:
    """Return where a step stands that has this path in the plan."""
    plan: AgentTables | PlanTable = tables
    where: KeyPath = ()
    for name in path.split("/"):
        number, step = next((n, step) for n, step in enumerate(plan.steps) if step.id == name)
        place = (*where, "steps", number)
        if step.sub is not None:
            plan, where = tables.plans[step.sub], ("plans", step.sub)
    return place


class _Builder:
    def __init__(self, tables: AgentTables, code: Code, faults: Faults) -> None:
        self.subs: Final[dict[str, Plan]] = {}
        self._tables = tables
        self._code = code
        self._faults = faults
        self._around: list[str] = []  # names of the plans that are being built, the outermost first

    def plan(self, table: AgentTables | PlanTable, where: KeyPath) -> Plan | None:
        steps = [self._step(step, (*where, "steps", number)) for number, step in enumerate(table.steps)]
        panels: list[Panel | None] = []
        for number, panel in enumerate(table.panels):
            place = (*where, "panels", number)
            reducer = self._code.function(panel.reducer, (*place, "reducer"))
            try:
                panels.append(Panel(panel.steps, reducer))
            except PlanError as error:
                self._faults.note_error(error, place)
                panels.append(None)
        if None in steps or None in panels:
            return None
        try:
            return Plan(filter(None, steps), filter(None, panels))
        except PlanError as error:
            self._faults.note_error(error, _place(error, table, where))
            return None

    def sub(self, name: str, where: KeyPath) -> Plan:
        """Return the sub-plan of this name, built once; `where` is the step's that names it."""
        if name in self._around:
            circle = " -> ".join([*self._around[self._around.index(name) :], name])
            self._faults.note_field("agent.plan", (*where, "sub"), f"plans run in a circle, {circle}: take one out")
            return _ELSEWHERE
        if name not in self._tables.plans:
            text = f"no table [plans.{name}]; {close(name, self._tables.plans)}"
            self._faults.note_field("agent.plan", (*where, "sub"), text)
            return _ELSEWHERE
        if len(self._around) >= MAX_DEPTH:
            self._faults.note_field("plan.depth", (*where, "sub"), f"plans nest deeper than {MAX_DEPTH}: flatten one")
            return _ELSEWHERE
        if name not in self.subs:
            self._around.append(name)
            self.subs[name] = self.plan(self._tables.plans[name], ("plans", name)) or _ELSEWHERE
            self._around.pop()
        return self.subs[name]

    def _step(self, table: StepTable, where: KeyPath) -> Step | None:
        function = self._code.function
        payload_from = function(table.payload_from, (*where, "payload_from"))
        route = function(table.route, (*where, "route"))
        guard = None if table.loop is None else function(table.loop.guard, (*where, "loop", "guard"))
        sub = None if table.sub is None else self.sub(table.sub, where)
        try:
            return Step(
                table.id,
                target=table.target,
                needs=table.needs,
                to=table.to,
                payload=table.payload,
                payload_from=payload_from,
                capability=table.capability,
                gate=table.gate,
                when=table.when,
                route=route,
                retry=None if table.retry is None else _retry(table.retry),
                loop=None if table.loop is None else _loop(table.loop, guard),
                sub=sub,
                ack_timeout=table.ack_timeout,
                corrections=table.corrections,
                once=table.once,
            )
        except PlanError as error:
            if error.step is None:  # a retry or a loop, which do not know their step
                told = PlanError(f"step {shown(table.id)}, {error.args[0]}", code=error.code)
                told.step = table.id
                error = told
            self._faults.note_error(error, where)
            return None


def _retry(table: RetryTable) -> Retry:
    return Retry(table.attempts, delay=table.delay, factor=table.factor, longest=table.longest, jitter=table.jitter)


def _loop(table: LoopTable, guard: object) -> Loop:
    return Loop(table.max, guard)  # type: ignore[arg-type]


def _place(error: FlowError, table: AgentTables | PlanTable, where: KeyPath) -> KeyPath:
    """Return where the step or panel stands that an error of a plan is of: of two steps with one id, the later."""
    if error.code == "plan.panel":
        panels = (number for number, panel in enumerate(table.panels) if error.step in panel.steps)
        return (*where, "panels", next(panels))
    steps = [number for number, step in enumerate(table.steps) if step.id == error.step]
    return (*where, "steps", steps[-1 if error.code == "plan.id" else 0]) if steps else where
