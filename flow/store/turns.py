"""Letting others go on, in stores whose commits mostly wait for nothing."""

from collections.abc import Sequence

from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

from flow.store.contract import Head


async def take_turn(at: Head, records: Sequence[bytes]) -> None:
    """Before a commit, let whatever else the event loop has to do go on: about once a step, always at the same places.

    A run whose order depended on how many commits came before it would not be the same when it is resumed (rule D13).
    """
    await (checkpoint() if records and not at.standing else checkpoint_if_cancelled())
