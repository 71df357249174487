"""What a run writes is signed on what really stands in the store, and never a second time something else."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio
import pytest

from envelope import (
    Ack,
    Envelope,
    EnvelopeError,
    Identity,
    Message,
    Roster,
    Ruling,
    Seal,
    address,
    open_envelope,
    sign_record,
    verify_thread,
)
from flow import MemoryStore, StoreError, Superseded, ThreadStore
from flow.journal import Journal
from flow.testing import FakeClock
from tests.flow.stage import ANNA, BEN, OWNER, Meddled, appended, opened, settled, story

pytestmark = pytest.mark.anyio

KEYS = sorted((ANNA.public_key, BEN.public_key))


@pytest.fixture
def store() -> Meddled:
    return Meddled()


async def begun(store: ThreadStore, **fields: Any) -> Journal:
    members = [
        {"key": OWNER.public_key, "role": "moderator", "name": "owner"},
        {"key": ANNA.public_key, "role": "member", "name": "anna"},
        {"key": BEN.public_key, "role": "moderator", "name": "ben"},
    ]
    journal = Journal(store, "t", OWNER, FakeClock())
    await journal.begin(
        {"nonce": bytes(16), "members": tuple(sorted(members, key=lambda m: bytes(m["key"]))), **fields}, b"begun"
    )
    return journal


def saying(message_id: str) -> Callable[[], dict[str, Any]]:
    return lambda: {"id": message_id, "intent": "request", "epistemic": "assumed", "payload": "do it", "to": KEYS}


async def said(journal: Journal, message_id: str = "m", state: bytes = b"sent") -> Envelope[Message]:
    return await journal.append(Message, saying(message_id), state)


def ack_of(message: Envelope[Message], who: Identity = ANNA, **fields: Any) -> Envelope[Ack]:
    fields = {"answer": "accept", "restatement": "understood", **fields}
    return sign_record(Ack, who, thread=message.record.thread, message=message.address, **fields)


def once(act: Callable[[], Awaitable[object]], kind: str) -> Callable[[list[str]], Awaitable[None]]:
    """Act before, or after, the first commit that holds a record of a kind."""
    left = [act]

    async def step_in(kinds: list[str]) -> None:
        if kind in kinds and left:
            await left.pop()()

    return step_in


async def codes(journal: Journal, act: Callable[[], Awaitable[object]]) -> tuple[str, list[str]]:
    with pytest.raises(StoreError) as raised:
        await act()
    return raised.value.code, story(await journal.records())


# Another member appends meanwhile


@pytest.mark.rule("S5")
async def test_a_message_that_lost_to_another_member_is_signed_anew_on_what_stands(store: Meddled) -> None:
    journal = await begun(store)
    store.before = once(lambda: appended(store.store, ANNA, Message, **_note("hers")), "message")
    message = await said(journal)
    assert story(await journal.records()) == ["open", "assert hers", "request m"]
    hers, mine = [open_envelope(raw) for raw in (await journal.records())[1:]]
    assert (mine.address, mine.record.prev, mine.record.seq) == (message.address, hers.address, 2)


@pytest.mark.rule("S5")
async def test_the_bytes_that_lost_are_published_nowhere(store: Meddled) -> None:
    journal = await begun(store)
    store.before = once(lambda: appended(store.store, ANNA, Message, **_note("hers")), "message")
    message = await said(journal)
    lost, won = (records[0] for records in store.sent[1:])
    assert (lost != won, won == message.raw) == (True, True)
    assert lost not in await journal.records()
    assert journal.thread.find(address(lost)) < 0


@pytest.mark.rule("S5")
async def test_receipts_that_lost_go_in_again_as_the_same_bytes(store: Meddled) -> None:
    journal = await begun(store)
    message = await said(journal)
    ack = ack_of(message)
    ruling = journal.sign(Ruling, ack=ack.address, ruling="confirm")
    store.before = once(lambda: appended(store.store, ANNA, Message, **_note("hers")), "ack")
    await journal.receive([ack, ruling], b"confirmed")
    assert store.sent[-2] == store.sent[-1] == [ack.raw, ruling.raw]
    assert story(await journal.records()) == ["open", "request m", "assert hers", "anna accepts", "confirm"]


@pytest.mark.rule("S5")
async def test_receipts_of_others_are_committed_with_those_of_the_run(store: Meddled) -> None:
    journal = await begun(store)
    message = await said(journal)
    await journal.receive([ack_of(message)], None)
    store.before = once(lambda: appended(store.store, BEN, Ack, **_ack_fields(message)), "settle")
    await journal.settle()
    assert story(await journal.records()) == ["open", "request m", "anna accepts", "ben accepts", "settle"]


@pytest.mark.rule("S5")
async def test_what_is_owed_is_carried_once_however_often_a_record_is_signed(store: Meddled) -> None:
    journal = await begun(store)
    journal.carry([{"step": ("s",), "outcome": "succeeded"}])
    store.before = once(lambda: appended(store.store, ANNA, Message, **_note("hers")), "message")
    await said(journal, "m")
    await said(journal, "n")
    assert settled(await journal.records()) == {"s": ("succeeded", None, None)}


@pytest.mark.rule("S5")
async def test_an_id_is_chosen_anew_when_the_record_is(store: Meddled) -> None:
    journal = await begun(store)
    store.before = once(lambda: appended(store.store, ANNA, Message, **_note("m")), "message")

    def free() -> dict[str, Any]:
        return saying("m#2" if journal.thread.has_id("m") else "m")()

    await journal.append(Message, free, b"sent")
    assert story(await journal.records()) == ["open", "assert m", "request m#2"]


@pytest.mark.rule("S5")
async def test_several_records_are_signed_anew_together(store: Meddled) -> None:
    journal = await begun(store)
    store.before = once(lambda: appended(store.store, ANNA, Message, **_note("hers")), "message")
    await journal.append_all([(Message, saying("m")), (Message, saying("n"))], b"sent")
    assert story(await journal.records()) == ["open", "assert hers", "request m", "request n"]
    assert len(await store.states("t")) == 2


@pytest.mark.rule("S5")
async def test_a_refresh_takes_in_what_others_appended(store: Meddled) -> None:
    journal = await begun(store)
    hers = await appended(store.store, ANNA, Message, **_note("hers"))
    assert journal.thread.find(hers.address) < 0
    await journal.refresh()
    await journal.refresh()
    assert journal.thread.tip == hers.address


# The thread is no longer this run's


@pytest.mark.rule("R37")
async def test_a_chain_record_of_the_runs_own_key_supersedes_it(store: Meddled) -> None:
    journal = await begun(store)
    store.before = once(lambda: appended(store.store, OWNER, Message, **_note("mine")), "message")
    await _superseded(journal, "another run of this key", ["open", "assert mine"])


@pytest.mark.rule("R37")
async def test_a_receipt_of_the_runs_own_key_supersedes_it(store: Meddled) -> None:
    journal = await begun(store)
    message = await said(journal)
    ack = await appended(store.store, ANNA, Ack, **_ack_fields(message))
    await appended(store.store, OWNER, Ruling, ack=ack.address, ruling="confirm")
    await _superseded(journal, "another run of this key", ["open", "request m", "anna accepts", "confirm"])


@pytest.mark.rule("R37")
async def test_an_entry_of_private_state_by_another_run_supersedes_it(store: Meddled) -> None:
    journal = await begun(store)
    await store.commit("t", await store.head("t"), [], b"another run's")
    await _superseded(journal, "another run of this key", ["open"])


@pytest.mark.rule("R37")
async def test_a_key_that_is_no_moderator_any_more_is_superseded(store: Meddled) -> None:
    journal = await begun(store)
    await appended(store.store, BEN, Roster, change="role", key=OWNER.public_key, role="member")
    await _superseded(journal, "no longer a moderator", ["open", "ben: role owner"])


@pytest.mark.rule("R37")
async def test_a_seal_by_another_moderator_supersedes_the_run(store: Meddled) -> None:
    journal = await begun(store)
    await appended(store.store, BEN, Seal, outcome="cancelled")
    await _superseded(journal, "another moderator sealed", ["open", "seal cancelled"])


# A commit whose fate is unknown


@pytest.mark.rule("S6")
async def test_after_an_unknown_fate_the_same_bytes_are_sent_again_and_stand_once(store: Meddled) -> None:
    journal = await begun(store)

    async def doubt() -> None:
        raise StoreError("the connection broke", code="store.in_doubt")

    store.after = once(doubt, "message")
    message = await said(journal)
    assert store.sent[1] == store.sent[2] == [message.raw]
    assert story(await journal.records()) == ["open", "request m"]
    assert [state.data for state in await store.states("t")] == [b"begun", b"sent"]


@pytest.mark.rule("S6")
async def test_after_an_unknown_fate_what_was_not_made_is_made(store: Meddled) -> None:
    journal = await begun(store)

    async def doubt() -> None:
        raise StoreError("the connection broke", code="store.in_doubt")

    store.before = once(doubt, "message")
    message = await said(journal)
    assert store.sent[1] == store.sent[2] == [message.raw]
    assert story(await journal.records()) == ["open", "request m"]


@pytest.mark.rule("S6")
async def test_what_was_made_in_doubt_is_no_other_run_though_others_appended_since(store: Meddled) -> None:
    journal = await begun(store)

    async def doubt() -> None:
        await appended(store.store, ANNA, Message, **_note("hers"))
        raise StoreError("the connection broke", code="store.in_doubt")

    store.after = once(doubt, "message")
    await said(journal, "m")
    await said(journal, "n")
    assert story(await journal.records()) == ["open", "request m", "assert hers", "request n"]


@pytest.mark.rule("S6")
async def test_a_store_that_never_knows_is_believed_in_the_end(store: Meddled) -> None:
    journal = await begun(store)

    async def doubt(kinds: list[str]) -> None:
        raise StoreError("the connection broke", code="store.in_doubt")

    store.before = doubt
    assert (await codes(journal, lambda: said(journal)))[0] == "store.in_doubt"
    assert store.sent[1:] == [store.sent[1]] * 3


# Other errors pass


@pytest.mark.rule("R35")
async def test_an_error_of_the_store_passes_and_nothing_is_sent_again(store: Meddled) -> None:
    journal = await begun(store)
    broken = OSError("disk full")

    async def fail(kinds: list[str]) -> None:
        raise broken

    store.before = fail
    with pytest.raises(OSError, match="disk full") as raised:
        await said(journal)
    assert (raised.value, len(store.sent)) == (broken, 2)


@pytest.mark.rule("S2")
async def test_a_refused_record_passes_and_the_journal_goes_on(store: Meddled) -> None:
    journal = await begun(store)
    await said(journal, "m")
    code, told = await codes(journal, lambda: said(journal, "m"))
    assert (code, told) == ("store.refused", ["open", "request m"])
    await said(journal, "n")
    assert story(await journal.records()) == ["open", "request m", "request n"]


@pytest.mark.rule("S2")
async def test_what_is_owed_stays_owed_when_a_commit_fails(store: Meddled) -> None:
    journal = await begun(store)
    await said(journal, "m")
    journal.carry([{"step": ("s",), "outcome": "succeeded"}])
    await codes(journal, lambda: said(journal, "m"))
    assert journal.owes
    await journal.settle()
    assert (settled(await journal.records()), journal.owes) == ({"s": ("succeeded", None, None)}, False)


@pytest.mark.rule("R29")
async def test_what_does_not_verify_is_not_even_sent_to_the_store() -> None:
    class Lax(MemoryStore):
        async def commit(self, *args: Any, **kwargs: Any) -> Any:
            raise AssertionError("the store was asked")

    journal = await begun(Lax())
    journal._identity = _Forger.from_seed(bytes([101] * 32))
    with pytest.raises(EnvelopeError) as raised:
        await said(journal)
    assert raised.value.code == "signature.invalid"


@pytest.mark.rule("S1")
async def test_the_journal_knows_of_nothing_before_it_is_durable(store: Meddled) -> None:
    journal = await begun(store)
    seen: list[tuple[int, bool]] = []

    async def look(kinds: list[str]) -> None:
        seen.append((journal.thread.index, journal.owes))

    store.before = store.after = look
    journal.carry([{"step": ("s",), "outcome": "succeeded"}])
    await said(journal)
    assert (seen, journal.thread.index, journal.owes) == ([(1, True), (1, True)], 2, False)


# A settle goes first where too much would stand


@pytest.mark.rule("R22")
@pytest.mark.parametrize("anyio_backend", ["asyncio"])
async def test_receipts_are_committed_by_a_settle_before_more_than_4096_would_stand(store: Meddled) -> None:
    many = [Identity.from_seed(bytes([7, number]) + bytes(30)) for number in range(128)]
    members = [{"key": OWNER.public_key, "role": "moderator", "name": "owner"}]
    members += [{"key": who.public_key, "role": "member", "name": f"p{n}"} for n, who in enumerate(many)]
    keys = tuple(sorted(who.public_key for who in many))
    journal = Journal(store, "t", OWNER, FakeClock())
    await journal.begin(
        {"nonce": bytes(16), "members": tuple(sorted(members, key=lambda m: bytes(m["key"])))}, b"begun"
    )
    messages = [await journal.append(Message, lambda i=i: {**saying(i)(), "to": keys}, b"sent") for i in "mn"]
    corrections: dict[bytes, bytes] = {}
    for _ in range(16):
        receipts: list[Envelope[Any]] = []
        for who in many:
            ack = ack_of(messages[0], who, after=corrections.get(who.public_key))
            ruling = journal.sign(Ruling, ack=ack.address, ruling="correct", correction="again")
            corrections[who.public_key] = ruling.address
            receipts += [ack, ruling]
        await journal.receive(receipts, None)
    assert (len(journal.thread.standing), store.log[-1].count("settle")) == (4096, 0)
    await journal.receive([ack_of(messages[1], many[0])], None)
    assert (len(journal.thread.standing), store.log[-2:]) == (1, [["settle"], ["ack"]])
    assert len(opened(await journal.records(), "settle")[0].receipts) == 4096


@pytest.mark.rule("R22")
async def test_one_receipt_more_than_may_stand_brings_a_settle_first(
    store: Meddled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("flow.journal._MOST_STANDING", 3)
    journal = await begun(store)
    message = await said(journal)
    ack = ack_of(message)
    ruling = journal.sign(Ruling, ack=ack.address, ruling="confirm")
    await journal.receive([ack, ruling], None)
    assert store.log[-1] == ["ack", "ruling"]
    bens = ack_of(message, BEN)
    await journal.receive([bens, journal.sign(Ruling, ack=bens.address, ruling="confirm")], None)
    assert store.log[-2:] == [["settle"], ["ack", "ruling"]]
    assert len(journal.thread.standing) == 2


@pytest.mark.rule("R22")
async def test_as_many_receipts_as_may_stand_do_stand(store: Meddled, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("flow.journal._MOST_STANDING", 3)
    journal = await begun(store)
    message = await said(journal)
    ack = ack_of(message)
    await journal.receive([ack, journal.sign(Ruling, ack=ack.address, ruling="confirm")], None)
    await journal.receive([ack_of(message, BEN)], None)
    assert (len(journal.thread.standing), store.log[-1]) == (3, ["ack"])


@pytest.mark.rule("R22")
async def test_settlements_are_carried_by_a_settle_when_512_of_them_are_owed(store: Meddled) -> None:
    journal = await begun(store)
    for number in range(1025):
        await journal.note(b"done", [{"step": (f"s-{number}",), "outcome": "succeeded"}])
    assert [len(record.settled) for record in opened(await journal.records(), "settle")] == [512, 512]
    await journal.append(Seal, lambda: {"outcome": "completed"}, b"completed")
    assert len(settled(await journal.records())) == 1025
    assert verify_thread(await journal.records(), trust=None).completeness == "sealed"


@pytest.mark.rule("R22")
async def test_what_is_owed_goes_before_a_record_that_settles_so_much_that_one_would_not_hold_both(
    store: Meddled,
) -> None:
    journal = await begun(store)
    message = await said(journal)
    await journal.receive([ack_of(message)], None)
    await journal.note(b"done", [{"step": (f"owed-{number}",), "outcome": "succeeded"} for number in range(500)])
    more = [{"step": (f"new-{number}",), "outcome": "failed", "status": "a", "attempts": 1} for number in range(1400)]
    await journal.append(Seal, lambda: {"outcome": "failed"}, b"failed", more)
    assert store.log[-2:] == [["settle"], ["seal", "state"]]
    records = await journal.records()
    assert (len(opened(records, "settle")[0].settled), len(opened(records, "seal")[0].settled)) == (500, 1400)
    assert opened(records, "seal")[0].receipts is None


@pytest.mark.rule("R22")
async def test_what_is_owed_goes_with_a_record_that_settles_as_much_as_one_holds(store: Meddled) -> None:
    journal = await begun(store)
    await journal.note(b"done", [{"step": (f"owed-{number}",), "outcome": "succeeded"} for number in range(12)])
    more = [{"step": (f"new-{number}",), "outcome": "failed"} for number in range(500)]
    await journal.append(Seal, lambda: {"outcome": "failed"}, b"failed", more)
    assert (story(await journal.records()), len(settled(await journal.records()))) == (["open", "seal failed"], 512)


@pytest.mark.rule("R22")
async def test_a_settle_is_appended_only_where_something_stands(store: Meddled) -> None:
    journal = await begun(store)
    await journal.settle()
    message = await said(journal)
    await journal.settle()
    assert story(await journal.records()) == ["open", "request m"]
    await journal.receive([ack_of(message)], None)
    await journal.settle()
    await journal.settle()
    assert story(await journal.records()) == ["open", "request m", "anna accepts", "settle"]


@pytest.mark.rule("S3")
async def test_two_tasks_of_one_run_write_one_after_the_other(store: Meddled) -> None:
    journal = await begun(store)
    message = await said(journal)
    async with anyio.create_task_group() as tasks:
        for who in (ANNA, BEN):
            tasks.start_soon(journal.receive, [ack_of(message, who)], None)
        tasks.start_soon(journal.settle)
    told = story(await journal.records())
    assert sorted(told[2:]) in (["anna accepts", "ben accepts", "settle"], ["anna accepts", "ben accepts"])


async def _superseded(journal: Journal, why: str, told: list[str]) -> None:
    with pytest.raises(Superseded, match=why):
        await said(journal, "late")
    assert story(await journal.records()) == told


def _note(message_id: str) -> dict[str, Any]:
    return {"id": message_id, "intent": "assert", "epistemic": "assumed", "payload": "by the way"}


def _ack_fields(message: Envelope[Message]) -> dict[str, Any]:
    return {"message": message.address, "answer": "accept", "restatement": "understood"}


class _Forger(Identity):
    __slots__ = ()

    def sign(self, message: bytes) -> bytes:
        signature = super().sign(message)
        return signature[:-1] + bytes([signature[-1] ^ 1])
