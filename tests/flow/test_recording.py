"""A record is written down as text that makes its equal, or refused before anything is appended."""

import enum
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import PurePosixPath
from typing import Annotated, Any, Literal
from uuid import UUID

import pytest
from pydantic import BaseModel, ConfigDict, Field, PlainSerializer, PrivateAttr, SecretStr

from flow import Call, Machine, Panel, Step, StepFailed, Transition
from flow.errors import MachineError
from flow.recording import Shape
from tests.flow.stage import Stage, opened, settled

pytestmark = pytest.mark.anyio


class Colour(enum.Enum):
    RED = "red"


class Line(BaseModel):
    sku: str
    price: Decimal
    due: datetime | None = None


class Gift(Line):
    wrapping: str


class Order(BaseModel):
    placed: datetime
    lines: list[Line] = []
    notes: dict[str, tuple[int, ...]] = {}
    colour: Colour = Colour.RED
    kind: Literal["order"] = "order"


class Frozen(BaseModel):
    model_config = ConfigDict(frozen=True)
    id: UUID
    where: PurePosixPath
    wait: timedelta


class Aliased(BaseModel):
    model_config = ConfigDict(serialize_by_alias=True, validate_by_name=True, validate_by_alias=True)
    total: int = Field(alias="TOTAL")


class Tree(BaseModel):
    value: int
    children: "list[Tree]" = []


@dataclass
class Point:
    x: float
    y: Decimal = Decimal("0")


@dataclass(frozen=True, slots=True)
class Route:
    points: tuple[Point, ...]
    at: datetime
    order: Order | None = None
    tags: frozenset[str] = field(default_factory=frozenset)


EAST = timezone(timedelta(hours=2))
NOON = datetime(2026, 3, 29, 12, 30, 0, 123456, tzinfo=UTC)
LINES = [Line(sku="a", price=Decimal("0.10")), Line(sku="ü☃", price=Decimal("1E+3"), due=NOON.astimezone(EAST))]
ORDER = Order(placed=NOON, lines=LINES, notes={"n": (1, 2)})

KEPT: dict[str, Any] = {
    "a map": {"n": 0, "ü": [None, True, 1.5, -0.0, "☃\x00", {"deep": []}]},
    "a list": [1, [2, [3]]],
    "a text": "done",
    "a number": 2**70,
    "a fraction": 0.1 + 0.2,
    "nothing": None,
    "a lone surrogate": {"odd": "\ud800"},
    "a model": ORDER,
    "an empty model": Order(placed=NOON),
    "a naive time": Order(placed=NOON.replace(tzinfo=None)),
    "a frozen model": Frozen(id=UUID(int=7), where=PurePosixPath("/a/b"), wait=timedelta(days=-1, microseconds=1)),
    "a model with aliases": Aliased(TOTAL=3),
    "a tree": Tree(value=1, children=[Tree(value=2, children=[Tree(value=3)])]),
    "a subclass": Gift(sku="a", price=Decimal("1"), wrapping="gold"),
    "a dataclass": Point(0.5, Decimal("1.50")),
    "a nested dataclass": Route((Point(1.0), Point(2.0, Decimal(2))), NOON, ORDER, frozenset({"a"})),
}


@pytest.mark.rule("M14")
@pytest.mark.parametrize("kind", KEPT)
def test_a_record_that_is_written_down_and_read_back_is_its_equal(kind: str) -> None:
    record = KEPT[kind]
    shape = Shape(record)
    again = shape.load(shape.dump(record))
    assert (type(again), again) == (type(record), record)
    assert shape.dump(again) == shape.dump(record)


@pytest.mark.rule("M14")
@pytest.mark.parametrize("kind", KEPT)
async def test_a_run_that_was_cut_off_goes_on_with_a_record_of_every_kind(kind: str) -> None:
    record = KEPT[kind]
    seen: list[Any] = []

    def look(record: Any, call: Call) -> Any:
        seen.append(record)
        return record

    machine = Machine("a", [("a", "go", "b"), Transition("b", "go", "c", on_entry=look)])
    steps = [Step("one", target="b", payload="do it"), Step("two", target="c", payload="do it")]
    stage = await Stage(*steps, machine=machine, record=record if record is not None else [None]).cut("done")
    run = await stage.resume()
    wanted = record if record is not None else [None]
    assert (run.record, seen) == (wanted, [wanted])
    assert type(run.record) is type(seen[0]) is type(wanted)


class Secret(BaseModel):
    word: SecretStr


class Hidden(BaseModel):
    shown: int = 0
    hidden: int = Field(default=0, exclude=True)


class Private(BaseModel):
    shown: int = 0
    _count: int = PrivateAttr(default=0)


class Rounded(BaseModel):
    n: Annotated[float, PlainSerializer(lambda n: round(n))]


class Loose(BaseModel):
    model_config = ConfigDict(arbitrary_types_allowed=True)
    thing: Any


class Basket(BaseModel):
    lines: list[Line]


@dataclass(eq=False)
class Incomparable:
    n: int


@dataclass
class Careless:
    n: int


class Opaque:
    pass


def private() -> Private:
    record = Private()
    record._count = 3
    return record


LOST: dict[str, Callable[[], Any]] = {
    "a secret": lambda: Secret(word=SecretStr("swordfish")),
    "a field that is left out": lambda: Hidden(hidden=3),
    "a private attribute": private,
    "a lossy serializer": lambda: Rounded(n=1.5),
    "a tuple where anything may stand": lambda: Loose(thing=(1, 2)),
    "a set where anything may stand": lambda: Loose(thing={1}),
    "a model where anything may stand": lambda: Loose(thing=ORDER),
    "an object of no known type": lambda: Loose(thing=Opaque()),
    "bytes that are no text": lambda: Loose(thing=b"\xff"),
    "an infinity": lambda: Loose(thing=float("inf")),
    "a number that is none": lambda: Point(float("nan")),
    "a field's subclass": lambda: Basket(lines=[Gift(sku="a", price=Decimal("1"), wrapping="gold")]),
    "a value of another type": lambda: Careless(n="three"),  # type: ignore[arg-type]
    "what does not compare": lambda: Incomparable(3),
    "a number too long to write": lambda: [10**5000],
}


@pytest.mark.rule("M14")
@pytest.mark.parametrize("kind", LOST)
async def test_a_record_that_does_not_survive_writing_is_refused_before_anything_is_appended(kind: str) -> None:
    stage = Stage(record=LOST[kind]())
    error = await stage.fails(MachineError)
    assert error.code == "machine.record"
    assert (await stage.store.names(), stage.store.sent) == ([], [])


@pytest.mark.rule("M14")
async def test_a_type_that_cannot_be_written_at_all_is_refused_before_anything_is_appended() -> None:
    @dataclass
    class Holder:
        thing: Opaque

    stage = Stage(record=Holder(Opaque()))
    error = await stage.fails(MachineError)
    assert (error.code, await stage.store.names()) == ("machine.record", [])


@pytest.mark.rule("M14")
@pytest.mark.parametrize(("length", "fits"), [(1_000_000 - 2, True), (1_000_000 - 1, False)])
async def test_a_record_has_a_million_characters_at_most(length: int, fits: bool) -> None:
    stage = Stage(record="x" * length)
    if fits:
        assert len((await stage.run()).record) == length
    else:
        error = await stage.fails(MachineError)
        assert (error.code, await stage.store.names()) == ("machine.record", [])


def _spoiled(record: Any, call: Call) -> Any:
    return Hidden(shown=1, hidden=1)


def _spoiled_panel(original: Any, records: Any) -> Any:
    return Hidden(shown=1, hidden=1)


@pytest.mark.rule("M14")
@pytest.mark.parametrize("gate", ["before", "after", "none"])
async def test_an_action_that_returns_such_a_record_fails_its_step(gate: Any) -> None:
    machine = Machine("a", [Transition("a", "go", "b", on_entry=_spoiled)])
    said = {} if gate == "none" else {"payload": "do it"}
    stage = Stage(Step("one", target="b", gate=gate, **said), machine=machine, record=Hidden())
    error = await stage.fails(StepFailed)
    assert settled(error.thread.records) == {"one": ("failed", 1, "a")}
    assert (error.record, error.status) == (Hidden(), "a")


@pytest.mark.rule("M14")
async def test_a_reducer_that_returns_such_a_record_fails_its_panel() -> None:
    steps = [Step("one", target="b", payload="do it"), Step("two", target="b", payload="do it")]
    stage = Stage(*steps, panels=[Panel(["one", "two"], reducer=_spoiled_panel)], record=Hidden())
    error = await stage.fails(StepFailed)
    assert "reducer" in str(error)
    assert {outcome for outcome, _, _ in settled(error.thread.records).values()} == {"failed"}


@pytest.mark.rule("M14")
async def test_what_is_written_down_is_in_private_state_alone() -> None:
    stage = Stage(record={"word": "swordfish"})
    run = await stage.run()
    assert not any(b"swordfish" in raw for raw in run.thread.records)
    assert any(b"swordfish" in state.data for state in await stage.store.states("t"))
    assert len(opened(run.thread.records, "seal")) == 1
