"""Where a run stands: its status and its record, and the record as text, which is what outlives the process."""

from typing import Any

from flow.progress import Entry
from flow.recording import Shape

Before = tuple[str, Any, str]


class Standing:
    """Status and record of a run, as they are now.

    Args:
        record: what is worked on, or, for a run that goes on, any record of its type.
    """

    def __init__(self, status: str, record: Any) -> None:
        self.status = status
        self.record = record
        self._shape = Shape(record)
        self.text = self._shape.dump(record)

    @property
    def now(self) -> Before:
        """What `back` returns to."""
        return self.status, self.record, self.text

    def back(self, before: Before) -> None:
        """Stand where the run stood before."""
        self.status, self.record, self.text = before

    def write_down(self, record: Any) -> None:
        """Take the text of a record that is about to become the run's.

        Raises:
            MachineError: `machine.record`.
        """
        self.text = self._shape.dump(record)

    def load(self, entry: Entry) -> None:
        """Stand where an entry of private state says.

        Raises:
            MachineError: `machine.record`.
        """
        if entry.status is not None:
            self.status = entry.status
        if entry.record is not None:
            self.text, self.record = entry.record, self._shape.load(entry.record)
