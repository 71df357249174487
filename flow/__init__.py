"""Run agents over envelope threads: each step is told, acknowledged, ruled on and fired, and the thread proves it."""

from flow.agent import Agent
from flow.agentfile import AgentFile
from flow.budget import Limits
from flow.bus import Bus, Event
from flow.clock import SYSTEM, Clock
from flow.document import PlanDocument, documents, read_document
from flow.errors import (
    AckTimeout,
    Cancelled,
    Declined,
    Escalated,
    FlowError,
    InDoubt,
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
from flow.job import Job
from flow.machine import Call, Failure, Machine, Transition
from flow.peers import Confirm, Correct, Delivery, Judge, Peer
from flow.plan import Draft, Loop, Panel, Plan, Retry, Step
from flow.run import Outcome, Run, ThreadCopy
from flow.store import Head, MemoryStore, SqliteStore, State, ThreadStore
from flow.supervisor import supervise
from flow.transport import local
from flow.validation import Finding, validate

__all__ = [
    "SYSTEM",
    "AckTimeout",
    "Agent",
    "AgentFile",
    "Bus",
    "Call",
    "Cancelled",
    "Clock",
    "Confirm",
    "Correct",
    "Declined",
    "Delivery",
    "Draft",
    "Escalated",
    "Event",
    "Failure",
    "Finding",
    "FlowError",
    "Head",
    "InDoubt",
    "InvalidThread",
    "Job",
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
    "supervise",
    "validate",
]
