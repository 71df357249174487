"""How a plan fits a machine, found without running it."""

from dataclasses import dataclass

from flow.machine import Machine
from flow.plan import Plan


@dataclass(frozen=True, slots=True)
class Finding:
    """Why a plan cannot run on a machine.

    Attributes:
        code: stable: `plan.no_row` or `plan.two_rows`.
        step: the id of the step concerned.
        text: what is wrong and what to do.
    """

    code: str
    step: str
    text: str


def validate(plan: Plan, machine: Machine) -> list[Finding]:
    """Walk the plan through the machine, and find each step that exactly one row does not bring to its target.

    Every step runs and ends in its target, so the status that a step starts from is known: the target of the one
    before it in `plan.order` (rule P16). After a finding the walk goes on as if the step had succeeded.

    Returns:
        Findings in the order of the run, each of which a run refuses; empty if the plan fits.
    """
    findings = []
    status = machine.initial
    for step in (step for unit in plan.order for step in unit.steps):
        rows = machine.rows_to(status, step.target or "")
        if len(rows) > 1:
            triggers = " and ".join(repr(row.trigger) for row in rows)
            findings.append(
                Finding(
                    "plan.two_rows",
                    step.id,
                    f"step {step.id!r}: {triggers} both lead from {status!r} to {step.target!r}; leave one row",
                )
            )
        elif not rows:
            findings.append(
                Finding(
                    "plan.no_row",
                    step.id,
                    f"step {step.id!r}: no row leads from {status!r} to {step.target!r}; "
                    "add one, or change the step's target or needs",
                )
            )
        status = step.target or status
    return findings
