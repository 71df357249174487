"""What the tests of a store in a file share: threads to store, and what is to be seen of them."""

from collections.abc import Awaitable
from pathlib import Path

import pytest

from envelope import Identity, ThreadWriter
from flow.errors import StoreError
from flow.store import Head, SqliteStore

ROOT = Path(__file__).parents[2]
OWNER, PEER = Identity.from_seed(bytes([1] * 32)), Identity.from_seed(bytes([2] * 32))


def begun(name: str = "t") -> ThreadWriter:
    members = (
        {"key": OWNER.public_key, "role": "moderator", "name": "owner"},
        {"key": PEER.public_key, "role": "member", "name": "peer"},
    )
    return ThreadWriter.open(OWNER, name, members)


def told(writer: ThreadWriter, message_id: str, payload: str = "say it") -> bytes:
    return writer.message(OWNER, message_id, payload, to=[PEER.public_key]).raw


async def filled(path: Path, messages: int = 3) -> tuple[ThreadWriter, Head]:
    """Make a store with a thread of some messages, each with a state, and close it."""
    writer = begun()
    async with SqliteStore(path) as store:
        head = await store.create("t", writer.records[0], b"begun")
        for number in range(messages):
            head = await store.commit("t", head, [told(writer, f"m-{number}")], f"state-{number + 1}".encode())
    return writer, head


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def log_size(path: Path) -> int:
    return Path(f"{path}-wal").stat().st_size


async def code(work: Awaitable[object]) -> str:
    with pytest.raises(StoreError) as raised:
        await work
    assert str(raised.value).count(": ") >= 2, "it says what is wrong, where, and what to do"
    return raised.value.code
