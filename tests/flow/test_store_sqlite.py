"""The store in a SQLite file keeps the contract, whatever happens to its process, its file and its disk."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from flow.store import SqliteStore, ThreadStore
from flow.testing import ThreadStoreContract

pytestmark = pytest.mark.anyio


@pytest.mark.rule("S2", "S3", "S4", "S6", "S8")
class TestSqliteStore(ThreadStoreContract):
    @pytest.fixture(autouse=True)
    async def _folder(self, tmp_path: Path) -> AsyncIterator[None]:
        self.path = tmp_path / "threads.db"
        self.opened: list[SqliteStore] = []
        yield
        for store in self.opened:
            await store.aclose()

    async def make_store(self) -> ThreadStore:
        store = SqliteStore(self.path)
        self.opened.append(store)
        return store

    async def reopen(self, store: ThreadStore) -> ThreadStore:
        return await self.make_store()
