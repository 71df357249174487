"""Where threads live while they grow."""

from flow.store.contract import Head, State, ThreadStore
from flow.store.memory import MemoryStore

__all__ = ["Head", "MemoryStore", "State", "ThreadStore"]
