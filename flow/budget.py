"""What a run may say at most, decided before anything is signed."""

from dataclasses import asdict, dataclass

from flow.errors import BudgetError

MAX_INTEGER = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on the owner's messages of one thread; 0 is no cap (rules L1 to L3).

    Attributes:
        max_bytes: of payload, all messages together.
        max_messages: how many.

    Raises:
        BudgetError: a cap is negative, not a whole number, or above 2^53-1.
    """

    max_bytes: int = 0
    max_messages: int = 0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            if type(value) is not int or not 0 <= value <= MAX_INTEGER:
                raise BudgetError(f"{name}={value!r}: give a whole number from 1, or 0 for no cap")

    def fits(self, used_bytes: int, used_messages: int, more_bytes: int, more_messages: int) -> bool:
        """Whether both caps still hold after that much more; exactly reaching a cap is within it."""
        return not (
            0 < self.max_bytes < used_bytes + more_bytes or 0 < self.max_messages < used_messages + more_messages
        )

    def document(self) -> dict[str, int]:
        """The caps as the `open` and the plan document write them: `bytes` and `messages`, each absent without cap."""
        caps = {"bytes": self.max_bytes, "messages": self.max_messages}
        return {name: cap for name, cap in caps.items() if cap}
