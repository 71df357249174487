"""Run agents over envelope threads: each step is told, acknowledged, ruled on and fired, and the thread proves it."""

from flow.agent import Agent
from flow.budget import Limits
from flow.bus import Bus, Event
from flow.clock import SYSTEM, Clock
from flow.document import PlanDocument, documents, read_document
from flow.errors import (
    AckTimeout,
    Declined,
    Escalated,
    FlowError,
    InvalidThread,
    NoRecipient,
    NoTransition,
    OverBudget,
    PlanError,
    Rejected,
    StepFailed,
    StoreError,
    Superseded,
)
from flow.heartbeat import Monitor
from flow.machine import Call, Machine, Transition
from flow.peers import Confirm, Correct, Delivery, Judge, Peer
from flow.plan import Draft, Loop, Panel, Plan, Retry, Step
from flow.run import Outcome, Run, ThreadCopy
from flow.store import Head, MemoryStore, SqliteStore, State, ThreadStore
from flow.transport import local
from flow.validation import Finding, validate

__all__ = [
    "SYSTEM",
    "AckTimeout",
    "Agent",
    "Bus",
    "Call",
    "Clock",
    "Confirm",
    "Correct",
    "Declined",
    "Delivery",
    "Draft",
    "Escalated",
    "Event",
    "Finding",
    "FlowError",
    "Head",
    "InvalidThread",
    "Judge",
    "Limits",
    "Loop",
    "Machine",
    "MemoryStore",
    "Monitor",
    "NoRecipient",
    "NoTransition",
    "Outcome",
    "OverBudget",
    "Panel",
    "Peer",
    "Plan",
    "PlanDocument",
    "PlanError",
    "Rejected",
    "Retry",
    "Run",
    "SqliteStore",
    "State",
    "Step",
    "StepFailed",
    "StoreError",
    "Superseded",
    "ThreadCopy",
    "ThreadStore",
    "Transition",
    "documents",
    "local",
    "read_document",
    "validate",
]
