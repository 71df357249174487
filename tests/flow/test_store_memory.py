"""The store in memory keeps the contract that every store is held to."""

import pytest

from flow.store import MemoryStore, ThreadStore
from flow.testing import ThreadStoreContract

pytestmark = pytest.mark.anyio


@pytest.mark.rule("S2", "S3", "S4", "S6", "S8", "S10", "S11", "S13")
class TestMemoryStore(ThreadStoreContract):
    async def make_store(self) -> ThreadStore:
        return MemoryStore()
