"""A bus that remembers."""

from flow.bus import Bus, Event


class RecordingBus(Bus):
    """A bus that remembers every event, in order, as `events`."""

    def __init__(self) -> None:
        super().__init__()
        self.events: list[Event] = []
        self.subscribe(self.events.append)

    def named(self, name: str) -> list[Event]:
        """The events of one name."""
        return [event for event in self.events if event.name == name]
