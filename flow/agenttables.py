"""What an agent document says, table by table; `spec/agent.schema.json` is made of these models.

Here is only what each table holds and of which type. How steps fit together is `flow.plan`'s to say, as for a plan that
stands in a program. Where code is meant there stands a name, which a program binds.
"""

from typing import Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field, Strict

from flow.budget import MAX_INTEGER
from flow.plan import Gate, When

SCHEMA_ID: Final = "urn:envelope-flow:agent:1"
"""Names the schema; nothing is fetched from there."""

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,63}$")]
"""Of members, rooms and sub-plans."""

Code = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,63}$")]
"""The name under which a program's registry has a function."""

File = Annotated[str, Field(pattern=r"^[^\u0000-\u001f\u007f]+$", max_length=4096)]
"""A path, from the folder of the document."""

Did = Annotated[str, Field(pattern=r"^did:key:z[1-9A-HJ-NP-Za-km-z]+$", max_length=128)]
"""A public key."""

Texts = Annotated[tuple[str, ...], Strict(False)]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, frozen=True, extra="forbid")


class RetryTable(_Table):
    """How often a firing is started if it fails, and how long to wait in between."""

    attempts: int = Field(description="All starts together, the first included: 2 to 1000.")
    delay: float = Field(0.0, description="Seconds to wait after the first failed attempt.")
    factor: float = Field(2.0, description="By which each wait is longer than the one before: 1 to 100.")
    longest: float = Field(60.0, description="Seconds that no wait exceeds, jitter aside.")
    jitter: int = Field(0, description="Whole percent, 0 to 100, by which a wait may be shorter or longer.")


class LoopTable(_Table):
    """How often a sub-plan is run."""

    max: int = Field(description="Rounds at most, 1 to 1,000,000.")
    guard: Code = Field(description="Name of guard(record, call) -> bool: go on for another round?")


class StepTable(_Table):
    """One thing to get done, and who must have understood it and agreed."""

    id: str = Field(description="The step's name, of its own in its plan.")
    needs: Texts = Field((), description="Ids of the steps that must be done before.")
    target: str | None = Field(None, description="The status it brings the run to; a step with sub has none.")
    to: Texts = Field((), description="Names of the peers who must acknowledge; every peer where there are none.")
    payload: str | None = Field(None, description="What is said to them.")
    payload_from: Code | None = Field(
        None, description="Name of f(record) -> text or Draft: what is said, made from the record."
    )
    capability: str | None = Field(None, description="The capability asked for.")
    gate: Gate = Field(
        "before", description="Acknowledged before the transition fires, reported after it, or none: no message."
    )
    when: When = Field(
        "succeeded", description="Run if all needs succeeded, if all finished, or if at least one failed; else skipped."
    )
    route: Code | None = Field(
        None, description="Name of route(record) -> id or ids: which of the steps that need this one go on."
    )
    retry: Annotated[RetryTable, Strict(False)] | None = Field(
        None, description="How often the firing is started if it fails; once where this is absent."
    )
    loop: Annotated[LoopTable, Strict(False)] | None = Field(
        None, description="How often sub is run; once where this is absent."
    )
    sub: str | None = Field(None, description="Name of one of [plans], run first; where it ends is the target.")
    ack_timeout: float | None = Field(
        None, description="Seconds for all rounds together, 0.001 or more; without end where this is absent."
    )
    corrections: int = Field(1, description="How often a recipient may be corrected, 0 to 15.")
    once: bool = Field(False, description="An interrupted firing is never started again by itself.")


class PanelTable(_Table):
    """Steps that are done together."""

    steps: Texts = Field(description="Their ids.")
    reducer: Code | None = Field(
        None, description="Name of reducer(original, records) -> record, for more than one step."
    )


Steps = Annotated[tuple[Annotated[StepTable, Strict(False)], ...], Strict(False)]
Panels = Annotated[tuple[Annotated[PanelTable, Strict(False)], ...], Strict(False)]


class PlanTable(_Table):
    """A plan that a step runs first, named by the step's sub."""

    steps: Steps = Field(description="Its steps.")
    panels: Panels = Field((), description="Those of its steps that are done together.")


class RowTable(_Table):
    """One row of the machine: in source, trigger leads to target."""

    source: str = Field(description="The status it leaves.")
    trigger: str = Field(description="What the transition is called; of its own among those that leave source.")
    target: str = Field(description="The status it leads to.")
    guard: Code | None = Field(None, description="Name of guard(record, call) -> bool; False refuses the firing.")
    on_exit: Code | None = Field(None, description="Name of action(record, call) -> record; first.")
    on_entry: Code | None = Field(None, description="Name of action(record, call) -> record, on what on_exit left.")


class MachineTable(_Table):
    """Which status may follow which."""

    initial: str = Field(description="The status of a new record.")
    rows: Annotated[tuple[Annotated[RowTable, Strict(False)], ...], Strict(False)] = Field(
        description="The transitions, at least one."
    )


class OwnerTable(_Table):
    """Who the agent is, and what it says it can do."""

    key: File = Field(description="Path of its key file, from the document's folder.")
    name: str | None = Field(None, description="Its display name; may be left out where there is a card.")
    description: str | None = Field(None, description="What it is for; not where there is a card.")
    capabilities: Texts = Field((), description="What it can do, at least one; may be left out where there is a card.")
    card: File | None = Field(
        None, description="Path of a card for its key, from the document's folder; else the key signs one."
    )


class PeerTable(_Table):
    """Who acknowledges: in this process (handler and key_file), or elsewhere (connect and key)."""

    key: Did | None = Field(None, description="Its public key as a did:key.")
    handler: Code | None = Field(
        None, description="Name of restate(message) -> text, which answers in this process; goes with key_file."
    )
    key_file: File | None = Field(
        None, description="Path of the key file that signs the handler's acks, from the document's folder."
    )
    connect: Code | None = Field(
        None, description="Name of connect(key) -> Peer, which gives the peer that reaches this key; goes with key."
    )


class ApproverTable(_Table):
    """A person to whom a step may be escalated."""

    key: Did = Field(description="Their public key as a did:key.")


class LimitsTable(_Table):
    """What the run may say at most; 0 is no cap."""

    max_bytes: int = Field(0, ge=0, le=MAX_INTEGER, description="Bytes of payload, all messages together.")
    max_messages: int = Field(0, ge=0, le=MAX_INTEGER, description="How many messages.")
    margin: int = Field(0, ge=0, le=99, description="Percent of each cap; what comes into it is told of once.")


class AgentTables(_Table):
    """An agent document: who the agent is, what it does, and whom it works with."""

    version: Annotated[int, Field(ge=1, le=1)] = Field(description="Of this form of document: 1.")
    agent: Annotated[OwnerTable, Strict(False)] = Field(description="Who the agent is.")
    machine: Annotated[MachineTable, Strict(False)] = Field(description="Which status may follow which.")
    steps: Steps = Field(description="What is to be done.")
    panels: Panels = Field((), description="Those steps that are done together.")
    plans: dict[Name, Annotated[PlanTable, Strict(False)]] = Field({}, description="Sub-plans by name.")
    judge: Code = Field(description="Name of judge(message, ack) -> Confirm or Correct: is that what I meant?")
    peers: dict[Name, Annotated[PeerTable, Strict(False)]] = Field({}, description="Who acknowledges, by name.")
    approvers: dict[Name, Annotated[ApproverTable, Strict(False)]] = Field(
        {}, description="To whom a step may be escalated, by name."
    )
    limits: Annotated[LimitsTable, Strict(False)] | None = Field(None, description="What the run may say at most.")
    room: Name | None = Field(None, description="Stands on every message.")
    record: dict[str, Any] = Field({}, description="What is worked on, as JSON data: no dates, no infinite numbers.")


def json_schema() -> dict[str, Any]:
    """The JSON Schema of agent documents, with a description for every field."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    schema: dict[str, Any] = _as_in_toml(AgentTables.model_json_schema())
    return head | schema


def _as_in_toml(schema: Any) -> Any:
    """Return a schema that knows no null, which TOML does not have, and no titles, which only repeat a name.

    Where keys have a form, no others are allowed, which pydantic leaves open.
    """
    if isinstance(schema, list):
        return [_as_in_toml(item) for item in schema]
    if not isinstance(schema, dict):
        return schema
    fields = {key: _as_in_toml(value) for key, value in schema.items() if (key, value) != ("default", None)}
    if isinstance(fields.get("title"), str):
        del fields["title"]
    if "patternProperties" in fields:
        fields["additionalProperties"] = False
    choices = [choice for choice in fields.get("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        del fields["anyOf"]
        fields |= choices[0]
    return fields
