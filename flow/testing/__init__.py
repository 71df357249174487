"""What tests of running code need: a clock that stands still until it is moved, a peer that follows a script, a bus
that remembers, a store that dies, a comparison of threads, and the contract that every store is held to."""

from flow.testing.bus import RecordingBus
from flow.testing.clock import FakeClock
from flow.testing.compare import differences
from flow.testing.contract import ThreadStoreContract
from flow.testing.crash import Crash, Crashing, crash, crash_everywhere, kill
from flow.testing.peers import ScriptedPeer, Twisted, Wait

__all__ = [
    "Crash",
    "Crashing",
    "FakeClock",
    "RecordingBus",
    "ScriptedPeer",
    "ThreadStoreContract",
    "Twisted",
    "Wait",
    "crash",
    "crash_everywhere",
    "differences",
    "kill",
]
