"""Ways for a message to reach its recipient."""

from flow.transport.local import local

__all__ = ["local"]
