"""The code that an agent document names: found in a registry that a program gives, and nowhere else."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from flow.agentfaults import Faults, close, shown
from flow.errors import FlowError
from flow.tomlplaces import KeyPath

Function = Callable[..., Any]
Registry = Mapping[str, Function]


@dataclass(frozen=True, slots=True)
class Named:
    """A function under the name that a document gives it, which is the name that the signed plan has for it."""

    name: str
    function: Function

    @property
    def __name__(self) -> str:
        return self.name

    def __call__(self, *arguments: Any) -> Any:
        """Call the function; what it returns may be awaitable, as the function's own."""
        return self.function(*arguments)


class Code:
    """Looks names up, and notes each that is not there.

    Args:
        registry: functions by name; None stands for one that has every name, where nothing is to be called.
        faults: where unknown names are noted.

    Attributes:
        uses: every name that was asked for, with what each of its places expects.
    """

    def __init__(self, registry: Registry | None, faults: Faults) -> None:
        self.uses: Final[dict[str, list[str]]] = {}
        self._registry = registry
        self._faults = faults

    def function(self, name: str | None, where: KeyPath) -> Any:
        """The function of this name, under this name, or a stand-in that must not be called; None for no name."""
        if name is None:
            return None
        found = self.found(name, where)
        return found if getattr(found, "__name__", None) == name else Named(name, found)

    def found(self, name: str, where: KeyPath) -> Function:
        """The function of this name as it stands in the registry, or a stand-in that must not be called."""
        self.uses.setdefault(name, []).append(str(where[-1]))
        if self._registry is None:
            return _absent
        found = self._registry.get(name)
        if callable(found):
            return found
        text = f"the registry has a {type(found).__name__} as {shown(name)}: put a function there"
        if name not in self._registry:
            text = f"the registry has no {shown(name)}; {close(name, filter(_is_text, self._registry))}"
        self._faults.note_field("agent.name", where, text)
        return _absent


def check_registry(registry: object) -> None:
    """Refuse what is no registry.

    Raises:
        FlowError: `agent.registry`.
    """
    if not isinstance(registry, Mapping):
        raise FlowError(
            f"the registry is a {type(registry).__name__}: give a mapping from names to functions",
            code="agent.registry",
        )


def _is_text(name: object) -> bool:
    return isinstance(name, str)


def _absent(*_: Any) -> Any:
    raise FlowError("this function is not bound: bind the document with a registry", code="agent.name")
