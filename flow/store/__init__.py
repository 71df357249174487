"""Where threads live while they grow."""

from flow.store.contract import IMPORTED, Head, State, ThreadStore, sent
from flow.store.memory import MemoryStore
from flow.store.sqlite import SqliteStore

__all__ = ["IMPORTED", "Head", "MemoryStore", "SqliteStore", "State", "ThreadStore", "sent"]
