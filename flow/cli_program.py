"""Finding what a command is given as MODULE:NAME, a Job or a registry, in a program of the user's own."""

import importlib
import inspect
import sys
import traceback
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from envelope import EnvelopeError
from envelope.unlock import unlock
from flow.agentfile import AgentFile
from flow.endings import words
from flow.errors import FlowError
from flow.job import Job

_ABSENT: Final = object()


def find_job(program: str, document: Path | None = None) -> Job:
    """Return a Job, or what a function makes that is one, of a module that is imported from the folder we are in.

    Args:
        program: `MODULE:NAME`, such as `release:job`; with a document, where its registry is.
        document: an agent document, which is bound to that.

    Raises:
        FlowError: `cli.with`, whatever the program does meanwhile; or what is wrong with the document.
    """
    if document is not None:
        return AgentFile.read(document).bind(find_registry(program), load=unlock)
    job: Job = _find(program, Job, "Job", "job")
    return job


def find_registry(program: str) -> Mapping[str, Callable[..., Any]]:
    """Return a mapping from names to functions, or what a function makes that is one; otherwise as `find_job`."""
    registry: Mapping[str, Callable[..., Any]] = _find(program, Mapping, "registry", "registry")
    return registry


def _find(program: str, kind: type, called: str, usual: str) -> Any:
    """Return what is of a kind, or what a function makes that is.

    Args:
        program: where.
        kind: the type wanted.
        called: what a thing of this type is called.
        usual: the name that it usually has in a program.
    """
    module, _, name = program.partition(":")
    if module.endswith(".py"):
        raise _refused(program, f"give the module without .py, as in {module.removesuffix('.py')}:{name or usual}")
    if not module or not name.isidentifier():
        raise _refused(program, f"give MODULE:NAME, such as release:{usual}")
    try:
        here = Path.cwd()  # before the program can leave it
    except OSError as error:
        raise _refused(program, f"the folder we are in is gone ({error.strerror}): go to another") from error
    sys.path.insert(0, str(here))
    try:
        found = importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        if isinstance(error, ModuleNotFoundError) and error.name and module.startswith(error.name):
            text = f"there is no module {error.name!r} here: go to the folder where {error.name}.py is"
            raise _refused(program, text) from error
        raise _refused(program, f"it does not import: {_told(error, here)}") from error
    try:
        where = getattr(found, "__file__", None) or module
        thing = getattr(found, name, _ABSENT)
        thing = thing() if callable(thing) and not isinstance(thing, kind) else thing
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        raise _refused(program, f"it makes no {called}: {_told(error, here)}") from error
    if thing is _ABSENT:
        raise _refused(program, f"{where} has no {name!r}: name the {called} that stands there")
    if inspect.iscoroutine(thing):
        thing.close()
    if not isinstance(thing, kind):
        text = f"that is a {type(thing).__name__}, not a {called}: name one, or a function that returns one"
        if isinstance(thing, Mapping):
            text = "that is a registry: name the document too, as in flow run FILE.toml, flow resume NAME --agent FILE"
        elif isinstance(thing, Job):
            text = "that is a Job, which needs no document: give the thread's name instead, or name a registry"
        raise _refused(program, text)
    return thing


def _refused(program: str, text: str) -> FlowError:
    return FlowError(f"--with {program!r}: {text}", code="cli.with")


def _told(error: BaseException, here: Path) -> str:
    """Return what a program raised, where, and what there is to do about it."""
    if isinstance(error, SystemExit):
        text = "it ends itself; put what it is to do as a program below if __name__ == '__main__'"
    elif isinstance(error, FlowError | EnvelopeError):
        text = words(error)
    else:
        text = f"{type(error).__name__}: {words(error)}"
    places = [frame for frame in traceback.extract_tb(error.__traceback__) if Path(frame.filename).is_relative_to(here)]
    return f"{text} ({Path(places[-1].filename).name}, line {places[-1].lineno})" if places else text
