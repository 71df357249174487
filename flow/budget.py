"""What a run may say at most, decided before anything is signed."""

from dataclasses import asdict, dataclass

from flow.errors import BudgetError

MAX_INTEGER = 2**53 - 1


@dataclass(frozen=True, slots=True)
class Limits:
    """Caps on the owner's messages of one thread; 0 is no cap (rules L1 to L4).

    Attributes:
        max_bytes: of payload, all messages together.
        max_messages: how many.
        margin: percent of each cap; what comes into it is told of once, so that the agent can come to an end; 0 is
            none.

    Raises:
        BudgetError: a cap is negative, not a whole number, or above 2^53-1; the margin is none from 0 to 99.
    """

    max_bytes: int = 0
    max_messages: int = 0
    margin: int = 0

    def __post_init__(self) -> None:
        if type(self.margin) is not int or not 0 <= self.margin < 100:
            raise BudgetError(f"margin={self.margin!r}: give percent, from 1 to 99, or 0 for none")
        for name, value in asdict(self).items():
            if type(value) is not int or not 0 <= value <= MAX_INTEGER:
                raise BudgetError(f"{name}={value!r}: give a whole number from 1, or 0 for no cap")

    def fits(self, used_bytes: int, used_messages: int, more_bytes: int, more_messages: int) -> bool:
        """Whether both caps still hold after that much more; exactly reaching a cap is within it."""
        return not (
            0 < self.max_bytes < used_bytes + more_bytes or 0 < self.max_messages < used_messages + more_messages
        )

    def is_low(self, used_bytes: int, used_messages: int) -> bool:
        """Whether what was said lies in the margin of a cap."""
        used = ((used_bytes, self.max_bytes), (used_messages, self.max_messages))
        return self.margin > 0 and any(cap and 100 * count > cap * (100 - self.margin) for count, cap in used)

    def document(self) -> dict[str, int]:
        """The caps as the `open` and the plan document write them: `bytes` and `messages`, each absent without cap.

        The margin concerns nobody but the agent itself, and stands in neither.
        """
        caps = {"bytes": self.max_bytes, "messages": self.max_messages}
        return {name: cap for name, cap in caps.items() if cap}
