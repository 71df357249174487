"""Agent documents: what they say is what a program would build, and what is wrong with them is told with its line."""

import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from envelope import Card, EnvelopeError, Identity, open_envelope
from envelope.threadfile import write_records
from flow import (
    AgentFile,
    FlowError,
    Limits,
    Loop,
    Machine,
    Panel,
    Plan,
    PlanError,
    Retry,
    Step,
    Transition,
    documents,
    local,
)
from flow.agentcode import Code
from flow.agentfaults import Faults
from flow.agentfile import MAX_BYTES, check
from flow.agentplan import build_plan
from flow.agenttables import LimitsTable, LoopTable, PanelTable, RetryTable, RowTable, StepTable
from flow.errors import MachineError
from tests.flow.agentdoc import ADA, AUTHOR, BEN, REGISTRY, as_toml, judge, restate, ship, written
from tests.flow.plandraw import again, choose, merge, say, told_plans

ROW = '[[machine.rows]]\nsource = "draft"'
SHIP = 'needs = ["review"]'
LAST = 'payload = "Ship it."'


def refused(path: Path, registry: Any = REGISTRY) -> FlowError:
    with pytest.raises(FlowError) as raised:
        AgentFile.read(path).bind(registry)
    return raised.value


def line_of(path: Path, text: str) -> int:
    return path.read_text("utf-8")[: path.read_text("utf-8").index(text)].count("\n") + 1


# What is said


def test_a_document_is_the_job_that_a_program_would_make(tmp_path: Path) -> None:
    more = "\n[limits]\nmax_messages = 9\nmargin = 10\n\n[record]\nn = [1, 2.5, {x = true}]\n"
    job = AgentFile.read(written(tmp_path, ("version", 'room = "dock"\nversion'), more=more)).bind(REGISTRY)
    plan = [(step.id, step.target, step.needs, step.to, step.payload) for step in job.agent.plan.steps]
    assert plan == [
        ("review", "reviewed", (), ("ben",), "Check it."),
        ("ship", "released", ("review",), (), "Ship it."),
    ]
    assert job.machine.rows == (
        Transition("draft", "review", "reviewed"),
        Transition("reviewed", "ship", "released", on_entry=ship),
    )
    assert (job.agent.identity.did, job.agent.name, job.agent.capabilities) == (AUTHOR.did, "author", ("release",))
    assert {name: peer.key for name, peer in job.peers.items()} == {"ben": BEN.public_key}
    assert (job.judge, dict(job.approvers)) == (judge, {"ada": ADA.public_key})
    assert (job.limits, job.room, job.record) == (Limits(0, 9, 10), "dock", {"n": [1, 2.5, {"x": True}]})


@pytest.mark.anyio
async def test_a_bound_document_runs(tmp_path: Path) -> None:
    run = await AgentFile.read(written(tmp_path)).bind(REGISTRY).run("t")
    assert (run.status, run.record) == ("released", {"shipped": "ship"})


@pytest.mark.anyio
async def test_the_signed_plan_names_code_as_the_document_does(tmp_path: Path) -> None:
    registry = {
        **REGISTRY,
        "ship": lambda record, call: {"by": "a lambda"},
        "judge": lambda message, ack: judge(message, ack),
    }
    job = AgentFile.read(written(tmp_path)).bind(registry)
    run = await job.run("t")
    (main,) = documents(job.agent.plan, job.machine, job.limits, judge, {"ship": job.machine.rows[1].on_entry})
    assert open_envelope(run.thread.records[0]).record.plan == main
    assert run.record == {"by": "a lambda"}


def test_a_handler_under_another_name_is_still_given_the_correction(tmp_path: Path) -> None:
    def answer(message: Any, correction: Any) -> str:
        return "yes"

    job = AgentFile.read(written(tmp_path)).bind({**REGISTRY, "restate": answer})
    assert vars(job.peers["ben"])["_takes_correction"]


NAMES: Mapping[str, Callable[..., Any]] = {"say": say, "choose": choose, "merge": merge, "again": again}
MACHINE = Machine("a", [("a", "go", "b")])


def plan_tables(plan: Plan, plans: dict[str, Any]) -> dict[str, Any]:
    def loop(step: Any) -> Any:
        return step.loop and {"max": step.loop.max, "guard": step.loop.guard.__name__}

    def retry(step: Any) -> Any:
        names = ("attempts", "delay", "factor", "longest", "jitter")
        return step.retry and {name: getattr(step.retry, name) for name in names}

    def sub(step: Any) -> Any:
        if step.sub is None:
            return None
        name = f"plan-{len(plans)}"
        plans[name] = {}
        plans[name] = plan_tables(step.sub, plans)
        return name

    def present(**fields: Any) -> dict[str, Any]:
        return {name: value for name, value in fields.items() if value is not None}

    names = (
        "id",
        "target",
        "needs",
        "to",
        "payload",
        "capability",
        "gate",
        "when",
        "ack_timeout",
        "corrections",
        "once",
    )
    steps = [
        present(
            **{name: getattr(step, name) for name in names},
            payload_from=step.payload_from and step.payload_from.__name__,
            route=step.route and step.route.__name__,
            loop=loop(step),
            retry=retry(step),
            sub=sub(step),
        )
        for step in plan.steps
    ]
    panels = [present(steps=panel.steps, reducer=panel.reducer and panel.reducer.__name__) for panel in plan.panels]
    return {"steps": steps, "panels": panels}


@given(told_plans())
@settings(max_examples=50, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_every_plan_can_be_written_as_a_document_and_read_back(plan: Plan) -> None:
    plans: dict[str, Any] = {}
    tables = {
        "version": 1,
        "judge": "judge",
        "agent": {"key": "k"},
        "machine": {"initial": "a", "rows": [{"source": "a", "trigger": "go", "target": "b"}]},
        **plan_tables(plan, plans),
        "plans": plans,
    }
    faults = Faults(Path("agent.toml"))
    read = AgentFile._parse(as_toml(tables), faults)
    assert read is not None, faults.found
    again_built = build_plan(read.tables, Code(NAMES, faults), faults)
    assert faults.found == []
    assert again_built is not None
    assert list(documents(again_built, MACHINE, Limits(), judge).values()) == list(
        documents(plan, MACHINE, Limits(), judge).values()
    )


# Members


def test_a_card_file_gives_name_and_capabilities(tmp_path: Path) -> None:
    card = Card.issue(AUTHOR, name="Release Bot", capabilities=["deploy", "release"])
    other = Card.issue(BEN, name="ben", capabilities=["review"])
    write_records(tmp_path / "all.proofs", [other.raw, card.raw])
    given = ('name = "author"\ncapabilities = ["release"]', 'card = "all.proofs"')
    job = AgentFile.read(written(tmp_path, given)).bind(REGISTRY)
    assert job.agent.card.raw == card.raw


@pytest.mark.parametrize("about", [BEN, None])
def test_a_card_file_without_one_card_of_the_key_is_refused(tmp_path: Path, about: Identity | None) -> None:
    cards = [Card.issue(about or AUTHOR, name=name, capabilities=["x"]).raw for name in ("a", "b")]
    write_records(tmp_path / "a.card", cards)
    path = written(tmp_path, ('name = "author"\ncapabilities = ["release"]', 'card = "a.card"'))
    error = refused(path)
    assert (error.code, f"line {line_of(path, 'card =')}: agent.card: a.card has" in str(error)) == ("agent.card", True)


def test_a_card_that_says_something_else_than_the_document_is_refused(tmp_path: Path) -> None:
    write_records(tmp_path / "a.card", [Card.issue(AUTHOR, name="x", capabilities=["release"]).raw])
    error = refused(written(tmp_path, ("capabilities", 'card = "a.card"\ncapabilities')))
    assert (error.code, "agent.name: the card says 'x'" in str(error)) == ("agent.card", True)


def test_an_agent_without_card_says_its_name_and_capabilities(tmp_path: Path) -> None:
    error = refused(written(tmp_path, ('capabilities = ["release"]\n', "")))
    assert (error.code, "agent.capabilities: it is missing" in str(error)) == ("agent.field", True)


def test_a_peer_elsewhere_is_what_connect_makes_of_its_key(tmp_path: Path) -> None:
    there = ('handler = "restate"\nkey_file = "ben.pem"', f'connect = "reach"\nkey = "{BEN.did}"')
    peer = local(BEN, restate)
    seen = []
    job = AgentFile.read(written(tmp_path, there)).bind({**REGISTRY, "reach": lambda key: seen.append(key) or peer})
    assert (dict(job.peers), seen) == ({"ben": peer}, [BEN.public_key])


async def never(key: bytes) -> None: ...


@pytest.mark.parametrize("connect", [lambda key: None, lambda key: local(ADA, restate), lambda key: 1 // 0, never])
def test_a_connect_that_makes_no_peer_of_that_key_is_refused(tmp_path: Path, connect: Any) -> None:
    there = ('handler = "restate"\nkey_file = "ben.pem"', f'connect = "reach"\nkey = "{BEN.did}"')
    path = written(tmp_path, there)
    error = refused(path, {**REGISTRY, "reach": connect})
    assert (error.code, f"line {line_of(path, 'connect')}: peers.ben.connect" in str(error)) == ("agent.peer", True)


def test_nothing_is_connected_to_while_anything_is_wrong_or_only_checked(tmp_path: Path) -> None:
    there = ('handler = "restate"\nkey_file = "ben.pem"', f'connect = "reach"\nkey = "{BEN.did}"')
    called: list[bytes] = []
    registry = {**REGISTRY, "reach": called.append}
    assert check(written(tmp_path, there), registry).job is not None
    refused(written(tmp_path, there, (LAST, f"{LAST}\nretry = {{ attempts = 1 }}")), registry)
    assert called == []


@pytest.mark.parametrize(
    "peer",
    [
        'handler = "restate"',
        'key_file = "ben.pem"',
        'connect = "restate"',
        'key = "{ben}"',
        'handler = "restate"\nconnect = "restate"\nkey_file = "ben.pem"\nkey = "{ben}"',
    ],
)
def test_a_peer_is_either_here_or_elsewhere(tmp_path: Path, peer: str) -> None:
    path = written(tmp_path, ('handler = "restate"\nkey_file = "ben.pem"', peer.replace("{ben}", BEN.did)))
    error = refused(path)
    assert error.code == "agent.field"
    assert f"line {line_of(path, '[peers.ben]')}: peers.ben: give handler and key_file" in str(error)


def test_a_key_beside_a_key_file_must_be_that_of_the_file(tmp_path: Path) -> None:
    error = refused(written(tmp_path, ("key_file", f'key = "{ADA.did}"\nkey_file')))
    assert (error.code, f"ben.pem is the key file of {BEN.did}" in str(error)) == ("agent.key", True)
    AgentFile.read(written(tmp_path, ("key_file", f'key = "{BEN.did}"\nkey_file'))).bind(REGISTRY)


@pytest.mark.parametrize(
    ("old", "new", "field"),
    [
        ("author.pem", "absent.pem", "agent.key"),
        ("author.pem", "agent.toml", "agent.key"),
        ("ben.pem", "absent.pem", "peers.ben.key_file"),
        ("ben.pem", "author.pem", "peers.ben"),
    ],
)
def test_a_key_file_that_is_none_or_that_two_have_is_refused(tmp_path: Path, old: str, new: str, field: str) -> None:
    path = written(tmp_path, (old, new))
    error = refused(path)
    assert error.code == "agent.key"
    assert re.search(rf"agent\.toml, line \d+: {re.escape(field)}: ", str(error))


def test_an_encrypted_key_is_opened_by_what_the_program_gives(tmp_path: Path) -> None:
    AUTHOR.save(tmp_path / "author.pem", "open sesame")
    document = AgentFile.read(written(tmp_path))
    with pytest.raises(FlowError, match="the key is encrypted; give its passphrase"):
        document.bind(REGISTRY)

    def load(path: Path) -> Identity:
        try:
            return Identity.load(path)
        except EnvelopeError:
            return Identity.load(path, "open sesame")

    assert document.bind(REGISTRY, load=load).agent.identity.did == AUTHOR.did


def test_a_peer_and_an_approver_of_one_name_are_refused(tmp_path: Path) -> None:
    error = refused(written(tmp_path, ("approvers.ada", "approvers.ben")))
    assert (error.code, "approvers.ben: a peer has this name too" in str(error)) == ("agent.field", True)


def test_no_secret_key_is_repeated_in_an_error(tmp_path: Path) -> None:
    secret = (tmp_path / "secret.pem", AUTHOR.save(tmp_path / "secret.pem"))[0].read_text()
    error = refused(written(tmp_path, ('"author.pem"', f'"""{secret}"""')))
    assert error.code == "agent.field"
    assert not any(line in str(error) for line in secret.splitlines())


# Names


def test_a_name_that_the_registry_lacks_is_refused_with_those_that_are_close(tmp_path: Path) -> None:
    path = written(tmp_path, ('on_entry = "ship"', 'on_entry = "shpi"'))
    error = refused(path)
    where = f"agent.name: {path}, line {line_of(path, 'shpi')}: machine.rows[2].on_entry:"
    assert str(error) == f"{where} the registry has no 'shpi'; did you mean 'ship'?"


def test_a_name_under_which_no_function_stands_is_refused(tmp_path: Path) -> None:
    error = refused(written(tmp_path), {**REGISTRY, "ship": "ship"})
    assert (error.code, "the registry has a str as 'ship': put a function there" in str(error)) == ("agent.name", True)


def test_a_handler_that_does_not_tell_what_it_takes_is_refused(tmp_path: Path) -> None:
    error = refused(written(tmp_path), {**REGISTRY, "restate": dict})
    assert (error.code, "peers.ben.handler: nothing tells what it takes" in str(error)) == ("agent.name", True)


def test_a_registry_that_is_none_is_refused(tmp_path: Path) -> None:
    assert refused(written(tmp_path), [ship]).code == "agent.registry"


def test_nothing_is_imported_because_a_document_names_it(tmp_path: Path) -> None:
    (tmp_path / "evil.py").write_text("raise SystemExit")
    assert refused(written(tmp_path, ('"judge"', '"evil.judge"'))).code == "agent.name"
    error = refused(written(tmp_path, ('"judge"', '"evil:judge"')))
    assert (error.code, "'evil:judge' stands here" in str(error)) == ("agent.field", True)


# Plans and machines

INNER = 'sub = "inner"\npayload = "x"'
INNER_PLAN = '\n[[plans.inner.steps]]\nid = "deep"\ntarget = "released"\npayload = "x"\n'


@pytest.mark.parametrize(
    ("changes", "more", "code", "text"),
    [
        ([(SHIP, 'needs = ["reviw"]')], "", "plan.needs", 'needs = ["reviw"]'),
        ([('id = "ship"', 'id = "review"')], "", "plan.id", 'id = "review"\nneeds'),
        ([(LAST, f"{LAST}\nretry = {{ attempts = 1 }}")], "", "plan.retry", "retry"),
        ([(LAST, f"{LAST}\ncorrections = 99")], "", "plan.corrections", "corrections"),
        ([(LAST, LAST)], '[[panels]]\nsteps = ["ship", "nobody"]\nreducer = "ship"', "plan.panel", "[[panels]]"),
        ([(LAST, f"{LAST}\nloop = {{ max = 2, guard = 'ship' }}")], "", "plan.loop", "loop"),
        ([('target = "released"\n' + LAST, INNER)], INNER_PLAN.replace('payload = "x"', ""), "plan.payload", "[[plans"),
        ([('target = "released"\n' + LAST, INNER)], INNER_PLAN.replace("released", "draft"), "plan.no_row", "[[plans"),
        ([('target = "released"\n' + LAST, INNER)], "", "agent.plan", "sub ="),
        (
            [('target = "released"\n' + LAST, INNER)],
            '\n[[plans.inner.steps]]\nid = "deep"\nsub = "inner"\npayload = "y"\n',
            "agent.plan",
            'sub = "inner"\npayload = "y"',
        ),
        ([('to = ["ben"]', 'to = ["bne"]')], "", "plan.to", "to ="),
        ([('target = "reviewed"\nto', 'target = "released"\nto')], "", "plan.no_row", '[[steps]]\nid = "review"'),
        ([(ROW, ROW.replace("draft", "reviewed"))], "", "machine.self_loop", "[[machine.rows]]"),
        ([('source = "reviewed"', 'source = "elsewhere"')], "", "machine.unreachable", '[[machine.rows]]\nsource = "e'),
        ([('initial = "draft"', 'initial = "no name"')], "", "machine.name", "initial"),
        ([(LAST, LAST)], "[record]\nx = 1979-05-27", "agent.field", "x = 1979"),
        ([(LAST, LAST)], "[record]\nx = [1,\ninf]", "agent.field", "inf]"),
    ],
)
def test_what_cannot_be_built_is_refused_at_its_line(
    tmp_path: Path, changes: list[tuple[str, str]], more: str, code: str, text: str
) -> None:
    path = written(tmp_path, *changes, more=more)
    error = refused(path)
    assert str(error).startswith(f"{code}: {path}, line {line_of(path, text)}: ")
    family = {"plan": PlanError, "machine": MachineError}.get(code.partition(".")[0], FlowError)
    assert type(error) is family


def test_an_error_names_the_step_for_programs(tmp_path: Path) -> None:
    assert refused(written(tmp_path, (LAST, f"{LAST}\nretry = {{ attempts = 1 }}"))).step == "ship"


def test_a_sub_plan_that_two_steps_name_is_one_plan(tmp_path: Path) -> None:
    more = INNER_PLAN.replace("released", "reviewed") + '[[steps]]\nid = "third"\nneeds = ["ship"]\n' + INNER + "\n"
    job = AgentFile.read(written(tmp_path, ('target = "released"\n' + LAST, INNER), more=more)).bind(REGISTRY)
    _, second, third = job.agent.plan.steps
    assert second.sub is third.sub is not None


@pytest.mark.parametrize("depth", [7, 8, 400])
def test_plans_nest_up_to_the_depth_that_a_path_has(tmp_path: Path, depth: int) -> None:
    last = f'\n[[plans.p{depth}.steps]]\nid = "s"\ntarget = "reviewed"\ngate = "none"\n'
    inner = "".join(f'\n[[plans.p{n}.steps]]\nid = "s"\nsub = "p{n + 1}"\ngate = "none"\n' for n in range(1, depth))
    path = written(tmp_path, ('target = "reviewed"\nto', 'sub = "p1"\nto'), more=inner + last)
    codes = {fault.code for fault in check(path, REGISTRY).faults if fault.severity == "error"}
    assert codes == (set() if depth == 7 else {"plan.depth"})


def test_a_plan_that_no_step_names_is_warned_of_and_its_faults_are_told(tmp_path: Path) -> None:
    path = written(tmp_path, more=INNER_PLAN + "corrections = -1\n")
    assert [(fault.code, fault.severity) for fault in check(path, REGISTRY).faults] == [
        ("agent.plan", "warning"),
        ("plan.corrections", "error"),
    ]


def test_all_that_is_wrong_is_told_at_once_in_the_order_of_the_lines(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        ('"judge"', '"jduge"'),
        ("author.pem", "absent.pem"),
        ('source = "reviewed"', 'source = "elsewhere"'),
        ('payload = "Check it."', 'payload = " "'),
        (LAST, f"{LAST}\ncapability = 'A'"),
    )
    checked = check(path, REGISTRY)
    codes = ["agent.name", "agent.key", "machine.unreachable", "plan.payload", "plan.capability"]
    assert [fault.code for fault in checked.faults] == codes
    assert checked.job is None
    assert "(and 4 more: `flow check` shows all)" in str(refused(path))


# Fields


@pytest.mark.parametrize(
    ("changes", "text", "said"),
    [
        ([("version = 1", "version = 2")], "version", "version: 2 stands here: give at most 1."),
        ([("version = 1\n", "")], "", "version: it is missing. Of this form of document: 1."),
        ([('to = ["ben"]', 'to = "ben"')], "to =", "steps['review'].to: 'ben' stands here: give a list. Names of the"),
        ([(LAST, f"{LAST}\npaylod = 1")], "paylod", "paylod: no such field; did you mean 'payload' or 'payload_from'?"),
        ([(LAST, f"{LAST}\ngate = 'befor'")], "gate", "'befor' stands here: give 'before', 'after' or 'none'."),
        ([(LAST, f"{LAST}\nretry.attempts = true")], "retry", "['ship'].retry.attempts: True stands here: give a"),
        ([("[peers.ben]", '[peers."b n"]')], '[peers."b n"]', "peers.'b n': 'b n' stands here: give a text of"),
        ([("on_entry", "on_enrty")], "on_enrty", "[2].on_enrty: no such field; did you mean 'on_entry' or"),
        ([(LAST, f"{LAST}\ncorrections = 0x{'f' * 9999}")], "corrections", "the number does not fit into 64 bits"),
    ],
)  # fmt: skip
def test_a_field_that_is_not_what_it_must_be_is_told_with_what_is(
    tmp_path: Path, changes: list[tuple[str, str]], text: str, said: str
) -> None:
    path = written(tmp_path, *changes)
    error = refused(path)
    assert error.code == "agent.field"
    assert said in str(error)
    assert not text or f"line {line_of(path, text)}: " in str(error)


# Files


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    error = refused(tmp_path / "absent.toml")
    assert str(error).startswith(f"agent.file: {tmp_path / 'absent.toml'}: No such file or directory: give an agent")


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"version = 1\nx = \n", ", line 2: no TOML: Invalid value, at column 5"),
        (b"version = 1\n\xff", ", line 2: byte 12 is no UTF-8"),
        (b"\n" + b"a." * 40 + b"a = 1", ", line 2: more than 32 words with dots between"),
        (b"\n[a" + rb'."\""' * 40 + b"]", ", line 2: more than 32 words with dots between"),
        (b"\n[a" + b".'\"'" * 40 + b"]", ", line 2: more than 32 words with dots between"),
        (b"x = " + b"[" * 100_000, ": it nests without end"),
        (b"x = " + b"9" * 9_999, "no TOML: Exceeds the limit"),
        (b"#" * (MAX_BYTES + 1), f": it is larger than {MAX_BYTES} bytes"),
    ],
)
def test_a_file_that_is_no_document_is_refused(tmp_path: Path, data: bytes, said: str) -> None:
    (tmp_path / "agent.toml").write_bytes(data)
    error = refused(tmp_path / "agent.toml")
    assert (error.code, said in str(error)) == ("agent.file", True)


def test_a_file_of_the_largest_size_is_read(tmp_path: Path) -> None:
    path = written(tmp_path)
    path.write_bytes(path.read_bytes().ljust(MAX_BYTES, b"\n"))
    AgentFile.read(path).bind(REGISTRY)


@pytest.mark.parametrize("nesting", [50, 150, 300, 450])
def test_a_record_nested_deeply_ends_in_a_job_or_an_error(tmp_path: Path, nesting: int) -> None:
    path = written(tmp_path, more="[record]\nx = " + "[" * nesting + "]" * nesting)
    checked = check(path, REGISTRY)
    assert (checked.job is None) == bool(checked.faults)


def test_a_record_that_is_nested_too_deeply_for_the_callers_stack_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, more="[record]\nx = " + "[" * 200 + "]" * 200)
    document = AgentFile.read(path)
    document.bind(REGISTRY)

    def deeper(levels: int) -> None:
        deeper(levels - 1) if levels else document.bind(REGISTRY)

    with pytest.raises(FlowError, match="record: it nests without end"):
        deeper(sys.getrecursionlimit() - len(inspect.stack()) - 350)


def test_a_record_that_is_too_long_to_be_written_down_is_refused(tmp_path: Path) -> None:
    path = written(tmp_path, more='[record]\nx = "' + "\xff" * 200_000 + '"')  # six characters of JSON each
    error = refused(path)
    assert (error.code, f"line {line_of(path, '[record]')}: the record is 12" in str(error)) == ("machine.record", True)


SCRAPS = st.sampled_from(
    [b"[", b"]", b"=", b"\n", b'"', b"'", b".", b"{", b"}", b",", b"1", b"nan", b"true", b"\xff", b"\x00", b"#", b"x"]
)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    more = '[limits]\nmax_bytes = 1\n[record]\nx = [1, "a"]\n[[panels]]\nsteps = ["ship"]\n' + INNER_PLAN
    return written(tmp_path_factory.mktemp("whole"), more=more)


@given(st.data())
@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_any_bytes_end_in_a_job_or_an_error_of_this_package(whole: Path, data: st.DataObject) -> None:
    good = whole.read_bytes()
    if data.draw(st.booleans()):
        start = data.draw(st.integers(0, len(good)))
        end = data.draw(st.integers(start, min(start + 20, len(good))))
        scraps = data.draw(st.lists(SCRAPS, max_size=4))
        bad = good[:start] + b"".join(scraps) + good[end:]
    else:
        bad = data.draw(st.binary() | st.lists(SCRAPS).map(b"".join))
    path = whole.with_name("changed.toml")
    path.write_bytes(bad)
    checked = check(path, REGISTRY)
    assert (checked.job is None) == any(fault.severity == "error" for fault in checked.faults)
    if checked.job is None:
        assert str(path) in str(refused(path))
    else:
        AgentFile.read(path).bind(REGISTRY)


@pytest.mark.parametrize(
    ("kind", "table"),
    [
        (Step, StepTable),
        (Retry, RetryTable),
        (Loop, LoopTable),
        (Panel, PanelTable),
        (Transition, RowTable),
        (Limits, LimitsTable),
    ],
)
def test_a_table_has_the_fields_of_what_it_describes(kind: Any, table: Any) -> None:
    assert {field.name for field in fields(kind)} - {"_"} == set(table.model_fields)
