"""Letting others go on, in stores whose commits mostly wait for nothing."""

from typing import Final

from anyio.lowlevel import checkpoint, checkpoint_if_cancelled

_COMMITS: Final = 4


class Turns:
    """Counts commits, and after every few lets whatever else the event loop has to do go on."""

    def __init__(self) -> None:
        self._count = 0

    async def take(self) -> None:
        """Count a commit that is about to be made."""
        self._count += 1
        await (checkpoint_if_cancelled() if self._count % _COMMITS else checkpoint())
