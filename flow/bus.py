"""A bus tells whoever listens what has happened, and lets no listener harm the teller.

Handlers run one after another in the order they subscribed; one that fails is logged and the rest still run. An event
that crossed processes may come more than once: its address tells a repetition from news.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from inspect import isawaitable
from types import MappingProxyType
from typing import Any, Final

MESSAGE_DELIVERED: Final = "agent.message_delivered"
"""A message is durable in the log."""
MESSAGE_ACKED: Final = "agent.message_acked"
"""A valid ack, and its ruling if it has one, are durable."""
ACK_DUE: Final = "agent.ack_due"
"""Half, or nine tenths, of a step's time for acknowledgements is over, and somebody is not confirmed yet."""
THREAD_VERIFIED: Final = "agent.thread_verified"
"""A sealed thread with at least one gated step verified as a whole."""
STEP_COMPLETED: Final = "flow.step_completed"
"""A step's outcome is durable."""
MACHINE_MOVE: Final = "machine.move"
"""A transition fired."""
BUDGET_LOW: Final = "budget.low"
"""What a run has said has come into the margin of its limits."""
HEARTBEAT_MISSED: Final = "heartbeat.missed"
"""An id has been silent for longer than its monitor's timeout."""
HEARTBEAT_RECOVERED: Final = "heartbeat.recovered"
"""An id that was silent has beaten again."""

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened (rule B6).

    Attributes:
        name: one of this module's names, or a program's own.
        data: what it is about; read-only.
        address: of the record that the event reports, 32 bytes, to deduplicate by; None if there is none.
    """

    name: str
    data: Mapping[str, Any] = field(default_factory=dict)
    address: bytes | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", MappingProxyType(dict(self.data)))


Handler = Callable[[Event], Awaitable[None] | None]


class Bus:
    """Handlers, told one after another (rules B1 to B5)."""

    def __init__(self) -> None:
        self._handlers: dict[object, tuple[Handler, str | None]] = {}

    def subscribe(self, handler: Handler, name: str | None = None) -> Callable[[], None]:
        """Have a handler told of events to come.

        Args:
            handler: called with each event; may be async.
            name: only events of this name; None, all of them.

        Returns:
            A function that ends this subscription; calling it again does nothing.
        """
        ticket = object()
        self._handlers[ticket] = (handler, name)

        def unsubscribe() -> None:
            self._handlers.pop(ticket, None)

        return unsubscribe

    async def emit(self, event: Event) -> None:
        """Tell everyone subscribed at this moment, in subscription order; only cancellation is raised."""
        for handler, name in tuple(self._handlers.values()):
            if name not in (None, event.name):
                continue
            try:
                done = handler(event)
                if isawaitable(done):
                    await done
            except Exception:
                _log.exception("handler %r failed on %s; the others go on", handler, event.name)
