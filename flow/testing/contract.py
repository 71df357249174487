"""The contract that every store is held to, as tests."""

from collections.abc import Awaitable, Callable
from typing import Any

import anyio

from envelope import (
    Ack,
    Envelope,
    EnvelopeError,
    Identity,
    Message,
    ThreadWriter,
    open_envelope,
    sign_record,
)
from flow.errors import StoreError
from flow.store import IMPORTED, Head, State, ThreadStore


class ThreadStoreContract:
    """Tests that every `flow.store.ThreadStore` passes, line by line of its contract.

    A subclass whose name begins with `Test` gives `make_store`, and `reopen` if what it stores outlives a process; its
    tests then run under anyio's pytest plugin. Both stores are used from then on, in turn and at once, as two processes
    would use them; what is to be closed, the subclass closes after the test.
    """

    async def make_store(self) -> ThreadStore:
        """Return a new store that holds no thread."""
        raise NotImplementedError

    async def reopen(self, store: ThreadStore) -> ThreadStore:
        """Return a store that another process would open after this one; by default the same."""
        return store

    # Beginning

    async def test_a_new_thread_holds_its_open_and_its_first_state(self) -> None:
        store, scene = await self._scene()
        opening = scene.writer.opening
        assert scene.head == Head(opening.address, opening.address, 1, (), 1)
        assert await store.head("first") == scene.head
        assert list(await store.read("first")) == [opening.raw]
        assert list(await store.states("first")) == [State(opening.address, b"begun")]

    async def test_a_name_that_is_taken_is_refused_and_its_thread_left_alone(self) -> None:
        store, scene = await self._scene()
        for opening in (scene.writer.opening, _Scene("first").writer.opening):
            assert await _code(store.create("first", opening.raw, b"other")) == "store.exists"
        await self._unchanged(store, scene)

    async def test_a_thread_begins_with_nothing_but_an_open(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello").raw
        for raw in (message, b"garbage", b"", _flipped(_Scene("second").writer.opening.raw)):
            error = await _refusal(store.create("second", raw, b"begun"))
            assert (error.code, type(error.__cause__)) == ("store.refused", EnvelopeError)
        assert await store.names() == ["first"]
        await store.create("second", _Scene("second").writer.opening.raw, b"begun")

    async def test_an_unknown_thread_is_unknown_to_every_question(self) -> None:
        store, scene = await self._scene()
        asked: list[Callable[[], Awaitable[Any]]] = [
            lambda: store.head("second"),
            lambda: store.commit("second", scene.head, [], b"state"),
            lambda: store.read("second"),
            lambda: store.states("second"),
        ]
        assert [await _code(question()) for question in asked] == ["store.unknown"] * 4
        assert list(await store.names()) == ["first"]

    async def test_names_are_sorted(self) -> None:
        store = await self.make_store()
        assert list(await store.names()) == []
        for name in ("b", "a.2", "B", "a-1", "a"):
            await store.create(name, _Scene(name).writer.opening.raw, b"begun")
        assert list(await store.names()) == ["B", "a", "a-1", "a.2", "b"]

    async def test_a_thread_that_was_begun_is_begun_again_without_effect(self) -> None:
        store, scene = await self._scene()
        first, opening = scene.head, scene.writer.opening.raw
        assert await store.create("first", opening, b"begun") == first
        await scene.exchange(store)
        for again in (store, await self.reopen(store)):
            assert await again.create("first", opening, b"begun") == first
            assert await _code(again.create("first", opening, b"other")) == "store.exists"
            await self._unchanged(again, scene)

    # Taking in a thread that grew elsewhere

    async def test_a_thread_is_taken_in_as_a_whole_with_one_state_that_says_so(self) -> None:
        store, scene = await self._elsewhere()
        await self._unchanged(store, scene)
        tip = scene.writer.thread.tip
        assert list(await store.states("first")) == [State(tip, IMPORTED)]
        assert scene.head == Head(scene.writer.thread.address, tip, 3, (), 1)
        await store.commit("first", scene.head, [scene.message("more").raw], b"goes on")

    async def test_a_thread_is_taken_in_with_its_standing_receipts(self) -> None:
        store, scene = await self.make_store(), _Scene("first")
        ack = scene.writer.ack(_PEER, scene.message("hello"), "understood")
        head = await store.adopt("first", scene.writer.records)
        assert head == Head(head.thread, scene.writer.thread.tip, 2, (ack.address,), 1) == await store.head("first")

    async def test_a_thread_that_is_taken_in_again_changes_nothing(self) -> None:
        store, scene = await self._elsewhere()
        for again in (store, await self.reopen(store)):
            assert await again.adopt("first", scene.writer.records) == scene.head
            await self._unchanged(again, scene)

    async def test_a_longer_copy_of_a_thread_extends_it_and_leaves_its_states(self) -> None:
        store, scene = await self._scene()
        await scene.exchange(store)
        states = list(await store.states("first"))
        more, again = scene.message("more"), scene.message("again")
        head = await store.adopt("first", scene.writer.records)
        assert head == Head(head.thread, again.address, 5, (), 3) == await store.head("first")
        assert list(await store.read("first"))[-2:] == [more.raw, again.raw]
        assert list(await store.states("first")) == states

    async def test_a_copy_that_lacks_what_is_stored_or_goes_on_differently_is_a_conflict(self) -> None:
        store, scene = await self._elsewhere()
        records = scene.writer.records
        for copy in (records[:1], records[:-1], [*records[:-1], records[0]], [records[0], scene.signed("other")]):
            assert await _code(store.adopt("first", copy)) == "store.conflict"
        await self._unchanged(store, scene)

    async def test_another_thread_is_not_taken_in_under_a_name_that_is_taken(self) -> None:
        store, scene = await self._elsewhere()
        assert await _code(store.adopt("first", _Scene("first").writer.records)) == "store.exists"
        await self._unchanged(store, scene)
        assert (await store.adopt("second", _Scene("first").writer.records)).seq == 1
        await self._unchanged(store, scene)

    async def test_a_thread_with_a_record_that_breaks_a_rule_is_not_taken_in_at_all(self) -> None:
        store, scene = await self._elsewhere()
        good = scene.writer.records
        for copy in ([], good[1:], [*good, b"garbage"], [*good, scene.signed("late", seq=7)], [good[0], good[2]]):
            assert await _code(store.adopt("second", copy)) == "store.refused"
        for bad in (b"garbage", scene.signed("late", seq=7), _flipped(scene.signed("late"))):
            for more in ([bad], [scene.signed("late"), bad]):
                error = await _refusal(store.adopt("first", [*good, *more]))
                assert (error.code, type(error.__cause__)) == ("store.refused", EnvelopeError)
        assert list(await store.names()) == ["first"]
        await self._unchanged(store, scene)
        await store.commit("first", scene.head, [scene.message("more").raw])

    # Commits

    async def test_a_commit_appends_its_records_and_its_state(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        head = await store.commit("first", scene.head, [message.raw], b"sent")
        assert head == Head(scene.head.thread, message.address, 2, (), 2) == await store.head("first")
        assert list(await store.read("first")) == scene.writer.records
        assert [state.data for state in await store.states("first")] == [b"begun", b"sent"]

    async def test_records_are_exactly_the_bytes_that_were_given(self) -> None:
        store, scene = await self._scene()
        await scene.exchange(store)
        assert list(await store.read("first")) == scene.writer.records
        assert all(type(raw) is bytes for raw in await store.read("first"))

    async def test_receipts_stand_in_order_until_a_chain_record_commits_them(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        at = await store.commit("first", scene.head, [message.raw])
        ack = scene.writer.ack(_PEER, message, "understood")
        head = await store.commit("first", at, [ack.raw])
        assert head == Head(at.thread, message.address, 2, (ack.address,), 1)
        ruling = scene.writer.ruling(_OWNER, ack)
        head = await store.commit("first", head, [ruling.raw])
        assert head == Head(at.thread, message.address, 2, (ack.address, ruling.address), 1)
        settle = scene.writer.settle(_OWNER)
        head = await store.commit("first", head, [settle.raw])
        assert head == Head(at.thread, settle.address, 3, (), 1) == await store.head("first")

    async def test_a_commit_may_be_of_state_alone_or_of_records_alone(self) -> None:
        store, scene = await self._scene()
        head = await store.commit("first", scene.head, [], b"firing")
        assert head == Head(scene.head.thread, scene.head.tip, 1, (), 2)
        message = scene.message("hello")
        assert await store.commit("first", head, [message.raw]) == Head(head.thread, message.address, 2, (), 2)
        assert [state.data for state in await store.states("first")] == [b"begun", b"firing"]
        assert len(await store.read("first")) == 2

    async def test_a_state_is_bound_to_the_tip_that_its_commit_leaves(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        at = await store.commit("first", scene.head, [message.raw], b"sent")
        ack = scene.writer.ack(_PEER, message, "understood")
        await store.commit("first", at, [ack.raw, scene.writer.ruling(_OWNER, ack).raw], b"confirmed")
        states = list(await store.states("first"))
        assert states == [
            State(scene.head.tip, b"begun"),
            State(message.address, b"sent"),
            State(message.address, b"confirmed"),
        ]

    async def test_reading_begins_at_the_place_that_is_asked_for(self) -> None:
        store, scene = await self._scene()
        await scene.exchange(store)
        records, states = list(await store.read("first")), list(await store.states("first"))
        assert (len(records), len(states)) == (5, 3)
        for start in range(7):
            assert list(await store.read("first", start)) == records[start:]
            assert list(await store.states("first", start)) == states[start:]

    async def test_what_is_read_is_no_part_of_the_store(self) -> None:
        store, scene = await self._scene()
        for read in (await store.read("first"), await store.states("first"), await store.names()):
            if isinstance(read, list):
                read.clear()
        await self._unchanged(store, scene)
        assert list(await store.names()) == ["first"]

    async def test_two_threads_of_a_store_know_nothing_of_each_other(self) -> None:
        store, scene = await self._scene()
        other = _Scene("first.2")
        other.head = await store.create("first.2", other.writer.opening.raw, b"other")
        await other.exchange(store)
        await self._unchanged(store, scene)
        assert await _code(store.commit("first", other.head, [], b"state")) == "store.conflict"
        assert await _code(store.commit("first", scene.head, [other.writer.records[1]])) == "store.refused"
        await self._unchanged(store, scene)

    async def test_what_was_committed_is_there_when_the_store_is_opened_again(self) -> None:
        store, scene = await self._scene()
        await scene.exchange(store)
        head, states = await store.head("first"), list(await store.states("first"))
        store = await self.reopen(store)
        assert await store.head("first") == head
        assert (list(await store.read("first")), list(await store.states("first"))) == (scene.writer.records, states)
        await store.commit("first", head, [scene.message("more").raw])

    # Two stores at one place

    async def test_each_store_sees_what_the_other_appends(self) -> None:
        one, scene = await self._scene()
        two = await self.reopen(one)
        for number, store in enumerate((two, one, one, two, two, one)):
            message = scene.message(f"m-{number}")
            scene.head = await store.commit("first", scene.head, [message.raw], b"state")
            for reader in (one, two):
                await self._unchanged(reader, scene)
        other = _Scene("second")
        other.head = await two.create("second", other.writer.opening.raw, b"begun")
        assert list(await one.names()) == ["first", "second"]
        await self._unchanged(one, other, "second")

    async def test_a_store_that_another_one_outran_refuses_what_builds_on_the_past(self) -> None:
        one, scene = await self._scene()
        two, old, late = await self.reopen(one), scene.head, scene.signed("late")
        await scene.exchange(two)
        assert await _code(one.commit("first", old, [late])) == "store.conflict"
        assert await _code(one.commit("first", old, [], b"state")) == "store.conflict"
        assert await _code(one.create("first", _Scene("first").writer.opening.raw, b"begun")) == "store.exists"
        assert await _code(one.adopt("first", scene.writer.records[:2])) == "store.conflict"
        await self._unchanged(one, scene)
        scene.head = await one.commit("first", scene.head, [scene.message("more").raw])
        await self._unchanged(two, scene)

    async def test_a_store_that_another_one_outran_refuses_what_breaks_a_rule_there(self) -> None:
        one, scene = await self._scene()
        two = await self.reopen(one)
        await scene.exchange(two)
        repeated = scene.signed("hello")
        error = await _refusal(one.commit("first", scene.head, [repeated]))
        assert isinstance(error.__cause__, EnvelopeError)
        assert (error.code, error.__cause__.code) == ("store.refused", "message.id")
        await self._unchanged(one, scene)

    async def test_a_commit_is_made_again_by_a_store_that_did_not_make_it(self) -> None:
        one, scene = await self._scene()
        two = await self.reopen(one)
        at, message = scene.head, scene.message("hello")
        made = scene.head = await one.commit("first", at, [message.raw], b"sent")
        assert await two.commit("first", at, [message.raw], b"sent") == made
        ack = scene.writer.ack(_PEER, message, "understood")
        stood = scene.head = await two.commit("first", made, [ack.raw])
        ruling = scene.writer.ruling(_OWNER, ack)
        ruled = scene.head = await one.commit("first", stood, [ruling.raw], b"confirmed")
        scene.head = await two.commit("first", ruled, [scene.writer.settle(_OWNER).raw])
        for store in (one, two, await self.reopen(one)):
            assert await store.commit("first", at, [message.raw], b"sent") == made
            assert await store.commit("first", made, [ack.raw]) == stood
            assert await store.commit("first", stood, [ruling.raw], b"confirmed") == ruled
            assert await _code(store.commit("first", stood, [ruling.raw], b"other")) == "store.conflict"
            await self._unchanged(store, scene)

    async def test_of_twenty_writers_with_two_stores_one_wins_each_tip(self) -> None:
        one, scene = await self._scene()
        two = await self.reopen(one)
        for turn in range(3):
            race: list[tuple[list[bytes], bytes | None]] = [
                ([scene.signed(f"m-{turn}-{number}")], None) for number in range(20)
            ]
            await self._race(one, race, scene.head, two)
            (won,) = await one.read("first", turn + 1)
            scene.writer.thread.apply(open_envelope(won))
            scene.writer.records.append(won)
            scene.head = await two.head("first")
            await self._unchanged(one, scene)

    # Refused

    async def test_a_commit_on_an_old_tip_is_a_conflict(self) -> None:
        store, scene = await self._scene()
        late = scene.signed("late")
        scene.head = await store.commit("first", scene.head, [scene.message("hello").raw])
        old = Head(scene.head.thread, scene.writer.opening.address, 1, (), 1)
        assert await _code(store.commit("first", old, [late])) == "store.conflict"
        assert await _code(store.commit("first", old, [], b"state")) == "store.conflict"
        await self._unchanged(store, scene)

    async def test_a_commit_that_missed_a_receipt_is_a_conflict(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        old = await store.commit("first", scene.head, [message.raw])
        scene.head = await store.commit("first", old, [scene.writer.ack(_PEER, message, "understood").raw])
        assert await _code(store.commit("first", old, [], b"state")) == "store.conflict"
        assert await _code(store.commit("first", old, [scene.signed("late")])) == "store.conflict"
        wrong = Head(old.thread, old.tip, old.seq, (bytes(32),), old.state)
        assert await _code(store.commit("first", wrong, [], b"state")) == "store.conflict"
        await self._unchanged(store, scene)

    async def test_a_commit_that_missed_a_state_is_a_conflict(self) -> None:
        store, scene = await self._scene()
        old, scene.head = scene.head, await store.commit("first", scene.head, [], b"firing")
        assert await _code(store.commit("first", old, [], b"other")) == "store.conflict"
        assert await _code(store.commit("first", old, [scene.signed("late")])) == "store.conflict"
        await self._unchanged(store, scene)

    async def test_a_record_that_breaks_a_rule_is_refused_and_the_thread_lives(self) -> None:
        store, scene = await self._scene()
        stranger = sign_record(Message, Identity.generate(), **scene.fields("hello"))
        for raw, code in (
            (stranger.raw, "roster.stranger"),
            (_flipped(scene.signed("hello")), "signature.invalid"),
            (scene.signed("hello", seq=7), "chain.seq"),
            (scene.writer.opening.raw, "chain.second_open"),
            (b"garbage", "cose.tag"),
        ):
            error = await _refusal(store.commit("first", scene.head, [raw], b"state"))
            cause = error.__cause__
            assert isinstance(cause, EnvelopeError)
            assert (error.code, cause.code) == ("store.refused", code)
            await self._unchanged(store, scene)
        await store.commit("first", scene.head, [scene.message("hello").raw])

    async def test_a_commit_is_made_whole_or_not_at_all(self) -> None:
        store, scene = await self._scene()
        message = scene.signed("hello")
        for bad in (scene.signed("again"), b"garbage", _flipped(message)):
            error = await _refusal(store.commit("first", scene.head, [message, bad], b"state"))
            assert (error.code, type(error.__cause__)) == ("store.refused", EnvelopeError)
            await self._unchanged(store, scene)
        first, second = scene.message("hello"), scene.message("again")
        head = await store.commit("first", scene.head, [first.raw, second.raw], b"state")
        assert head == Head(scene.head.thread, second.address, 3, (), 2)
        assert list(await store.read("first")) == scene.writer.records

    async def test_a_receipt_goes_with_a_refused_record(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        scene.head = await store.commit("first", scene.head, [message.raw])
        ack = scene.writer.ack(_PEER, message, "understood")
        scene.writer.records.pop()
        assert await _code(store.commit("first", scene.head, [ack.raw, b"garbage"], b"state")) == "store.refused"
        await self._unchanged(store, scene)
        head = await store.commit("first", scene.head, [ack.raw])
        assert head.standing == (ack.address,)

    async def test_nothing_follows_a_seal(self) -> None:
        store, scene = await self._scene()
        late = scene.fields("late")
        seal = scene.writer.seal(_OWNER, "cancelled")
        scene.head = await store.commit("first", scene.head, [seal.raw], b"sealed")
        raw = sign_record(Message, _OWNER, **{**late, "seq": 2, "prev": seal.address}).raw
        assert await _code(store.commit("first", scene.head, [raw])) == "store.refused"
        await self._unchanged(store, scene)

    # Repeated

    async def test_a_commit_that_was_made_is_made_again_without_effect(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        at = scene.head
        ack = scene.writer.ack(_PEER, message, "understood")
        for records, state in (
            ([message.raw], b"sent"),
            ([ack.raw, scene.writer.ruling(_OWNER, ack).raw], None),
            ([], b"firing"),
            ([scene.writer.settle(_OWNER).raw], None),
        ):
            head = await store.commit("first", at, records, state)
            assert [await store.commit("first", at, records, state) for _ in range(2)] == [head, head]
            at = scene.head = head
            assert await store.head("first") == head
        assert list(await store.read("first")) == scene.writer.records
        assert [state.data for state in await store.states("first")] == [b"begun", b"sent", b"firing"]

    async def test_a_commit_that_was_made_is_made_again_also_where_others_appended_since(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        made = await store.commit("first", scene.head, [message.raw], b"sent")
        ack = scene.writer.ack(_PEER, message, "understood")
        scene.head = await store.commit("first", made, [ack.raw])
        scene.head = await store.commit("first", scene.head, [scene.message("more", _PEER).raw])
        at = Head(made.thread, made.thread, 1, (), 1)
        assert await store.commit("first", at, [message.raw], b"sent") == made
        assert await store.commit("first", made, [ack.raw]) == Head(made.thread, made.tip, 2, (ack.address,), 2)
        await self._unchanged(store, scene)

    async def test_another_commit_at_an_old_head_is_no_repetition(self) -> None:
        store, scene = await self._scene()
        at, message = scene.head, scene.message("hello")
        scene.head = await store.commit("first", at, [message.raw], b"sent")
        for records, state in (([message.raw], b"other"), ([message.raw], None), ([], b"sent")):
            assert await _code(store.commit("first", at, records, state)) == "store.conflict"
        await self._unchanged(store, scene)

    async def test_a_head_that_never_was_is_no_head_that_a_commit_was_made_at(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        head = await store.commit("first", scene.head, [message.raw], b"sent")
        ack = scene.writer.ack(_PEER, message, "understood")
        at = await store.commit("first", head, [ack.raw])
        ruling = scene.writer.ruling(_OWNER, ack)
        scene.head = await store.commit("first", at, [ruling.raw], b"confirmed")
        assert await store.commit("first", at, [ruling.raw], b"confirmed") == scene.head
        for wrong in (
            Head(bytes(32), at.tip, at.seq, at.standing, at.state),
            Head(at.thread, bytes(32), at.seq, at.standing, at.state),
            Head(at.thread, at.tip, at.seq, (bytes(32),), at.state),
            Head(at.thread, at.tip, at.seq, (), at.state),
            Head(at.thread, at.tip, at.seq, at.standing, at.state + 1),
            Head(at.thread, at.tip, at.seq + 1, at.standing, at.state),
            Head(at.thread, bytes(32), 0, (), 0),
        ):
            assert await _code(store.commit("first", wrong, [ruling.raw], b"confirmed")) == "store.conflict"
        await self._unchanged(store, scene)

    async def test_no_record_is_stored_twice(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        scene.head = await store.commit("first", scene.head, [message.raw])
        ack = scene.writer.ack(_PEER, message, "understood")
        scene.head = await store.commit("first", scene.head, [ack.raw])
        for raw in (ack.raw, message.raw):
            assert await _code(store.commit("first", scene.head, [raw])) == "store.refused"
            await self._unchanged(store, scene)

    async def test_a_refused_commit_is_refused_again(self) -> None:
        store, scene = await self._scene()
        for _ in range(2):
            assert await _code(store.commit("first", scene.head, [b"garbage"], b"state")) == "store.refused"
        await self._unchanged(store, scene)

    # Races

    async def test_of_twenty_writers_that_race_for_a_tip_one_wins(self) -> None:
        store, scene = await self._scene()
        await self._race(store, [([scene.signed(f"m-{number}")], None) for number in range(20)], scene.head)
        assert len(await store.read("first")) == 2

    async def test_of_twenty_writers_that_race_to_add_a_receipt_one_wins(self) -> None:
        store, scene = await self._scene()
        message = scene.message("hello")
        head = await store.commit("first", scene.head, [message.raw])
        fields = {"thread": head.thread, "message": message.address, "answer": "accept"}
        acks = [sign_record(Ack, _PEER, restatement=f"take {number}", **fields) for number in range(20)]
        await self._race(store, [([ack.raw], None) for ack in acks], head)
        assert len((await store.head("first")).standing) == 1

    async def test_of_twenty_writers_that_race_for_the_next_state_one_wins(self) -> None:
        store, scene = await self._scene()
        await self._race(store, [([], f"state-{number}".encode()) for number in range(20)], scene.head)
        assert len(await store.states("first")) == 2

    async def _race(
        self,
        store: ThreadStore,
        commits: list[tuple[list[bytes], bytes | None]],
        at: Head,
        other: ThreadStore | None = None,
    ) -> None:
        results: list[Head | str] = []

        async def one(store: ThreadStore, records: list[bytes], state: bytes | None) -> None:
            try:
                results.append(await store.commit("first", at, records, state))
            except StoreError as error:
                results.append(error.code)

        async with anyio.create_task_group() as racing:
            for number, (records, state) in enumerate(commits):
                racing.start_soon(one, store if number % 2 or other is None else other, records, state)
        won = [result for result in results if result != "store.conflict"]
        assert won == [await store.head("first")]

    async def _scene(self) -> "tuple[ThreadStore, _Scene]":
        store, scene = await self.make_store(), _Scene("first")
        scene.head = await store.create("first", scene.writer.opening.raw, b"begun")
        return store, scene

    async def _elsewhere(self) -> "tuple[ThreadStore, _Scene]":
        """A store with a thread that grew in another one."""
        store, scene = await self.make_store(), _Scene("first")
        message = scene.message("hello")
        scene.writer.ruling(_OWNER, scene.writer.ack(_PEER, message, "understood"))
        scene.writer.settle(_OWNER, [{"message": message.address, "outcome": "succeeded"}])
        scene.head = await store.adopt("first", scene.writer.records)
        return store, scene

    async def _unchanged(self, store: ThreadStore, scene: "_Scene", name: str = "first") -> None:
        assert await store.head(name) == scene.head
        assert list(await store.read(name)) == scene.writer.records
        assert len(await store.states(name)) == scene.head.state


_OWNER, _PEER = Identity.from_seed(bytes([1] * 32)), Identity.from_seed(bytes([2] * 32))


class _Scene:
    """A thread of two members as it grows in a test: the writer's copy, and the head that the store should be at."""

    def __init__(self, name: str) -> None:
        members = (
            {"key": _OWNER.public_key, "role": "moderator", "name": "owner"},
            {"key": _PEER.public_key, "role": "member", "name": "peer"},
        )
        self.writer = ThreadWriter.open(_OWNER, name, members)
        self.head: Head

    def message(self, message_id: str, author: Identity = _OWNER) -> Envelope[Message]:
        """Append a request of one member to the other to the writer's copy."""
        to = _PEER if author is _OWNER else _OWNER
        return self.writer.message(author, message_id, "say it", to=[to.public_key])

    def fields(self, message_id: str, **fields: Any) -> dict[str, Any]:
        """The fields of a request at this place."""
        to = (_PEER.public_key,)
        own = {"id": message_id, "intent": "request", "epistemic": "assumed", "payload": "say it", "to": to}
        return {**self.writer.thread.links(), **own, **fields}

    def signed(self, message_id: str, **fields: Any) -> bytes:
        """The bytes of a request at this place, appended nowhere."""
        return sign_record(Message, _OWNER, **self.fields(message_id, **fields)).raw

    async def exchange(self, store: ThreadStore) -> None:
        """Commit a request, its ack and ruling, and a settle."""
        name = self.writer.opening.record.name
        message = self.message("hello")
        self.head = await store.commit(name, self.head, [message.raw], b"sent")
        ack = self.writer.ack(_PEER, message, "understood")
        ruling = self.writer.ruling(_OWNER, ack)
        self.head = await store.commit(name, self.head, [ack.raw, ruling.raw], b"confirmed")
        settled = {"message": message.address, "outcome": "succeeded"}
        self.head = await store.commit(name, self.head, [self.writer.settle(_OWNER, [settled]).raw])


async def _refusal(commit: Awaitable[object]) -> StoreError:
    try:
        await commit
    except StoreError as error:
        return error
    raise AssertionError("the store took what it should have refused")


async def _code(commit: Awaitable[object]) -> str:
    return (await _refusal(commit)).code


def _flipped(raw: bytes) -> bytes:
    """The bytes with the last bit of their signature changed."""
    return raw[:-1] + bytes([raw[-1] ^ 1])
