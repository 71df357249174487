"""`flow plan show`: what a person, or a program, is told of plan documents."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any
from unicodedata import category

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from envelope import address_text
from flow.budget import Limits
from flow.document import documents
from flow.machine import Machine, Transition
from flow.plan import Loop, Panel, Plan, Retry, Step
from flow.planview import Exported, as_json, as_mermaid, as_table
from tests.flow.plandraw import again, choose, merge, say, told_plans

HOSTILE = 'x"]\n  evil["<b>`%%{init}%%`\x1b[2J\u202e|click| end ; #quot;'


def judge(message: object, ack: object) -> None: ...


def ready(record: Any, call: Any) -> bool:
    return True


MACHINE = Machine("draft", [Transition("draft", "go", "done", guard=ready)])
SUB = Plan([Step("inner", target="done", gate="none")])
PLAN = Plan(
    [
        Step("triage", target="done", payload=HOSTILE, route=choose, to=["ben", "anna"], ack_timeout=2.5, corrections=0,
             capability="review", retry=Retry(3, delay=0.5, factor=1.5, longest=60, jitter=10)),
        Step("part", sub=SUB, loop=Loop(4, again), needs=["triage"], payload_from=say),
        Step("mend", target="done", needs=["triage"], when="failed", gate="after", payload="mended", once=True),
        Step("x", target="done", needs=["part"], when="finished", gate="none"),
        Step("y", target="done", needs=["part"], gate="none"),
    ],
    [Panel(["x", "y"], merge)],
)  # fmt: skip


def exported(folder: Path, plan: Plan = PLAN) -> list[Path]:
    """Write the documents of a plan to files, the main one first."""
    paths = []
    for number, data in enumerate(documents(plan, MACHINE, Limits(0, 20), judge).values()):
        paths.append(folder / f"{number}.plan")
        paths[-1].write_bytes(data)
    return paths


def flow(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "flow", "plan", "show", *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
        encoding="utf-8",
        env={"PYTHONPATH": str(Path(__file__).parents[2]), "PYTHONIOENCODING": "utf-8", "PATH": ""},
    )


def test_the_table_tells_the_address_and_all_that_a_step_says(tmp_path: Path) -> None:
    paths = exported(tmp_path)
    shown = flow(*paths)
    assert (shown.returncode, shown.stderr) == (0, "")
    main, sub = documents(PLAN, MACHINE, Limits(0, 20), judge)
    lines = shown.stdout.splitlines()
    assert lines[0] == f"{paths[0]}: {address_text(main)}"
    cells = [re.split(r"  +", line.strip()) for line in lines]
    assert cells[1] == ["step", "needs", "when", "to", "gate", "target", "says", "besides"]
    assert lines[2].startswith("  triage                    anna, ben   before  done")
    assert "route choose(), 3 attempts, 0.5 s x1.5 to 60 s +-10%, capability review, acks within 2.5 s" in lines[2]
    assert lines[2].endswith(", 0 corrections")
    assert cells[3][:5] == ["part", "triage", "every peer", "before", f"ends of {address_text(sub)[:15]}…"]
    assert cells[3][5:] == ["say()", "up to 4 rounds while again()"]
    assert cells[4] == ["mend", "triage", "failed", "every peer", "after", "done", '"mended"', "once"]
    assert cells[5] == ["x", "part", "finished", "none", "done", "panel 1"]
    assert [line.strip() for line in lines[7:12]] == [
        "panel 1: x, y, made one by merge()",
        "machine, from draft:",
        "draft -> done on go (guard ready())",
        "judge judge()",
        "limits: any bytes, 20 messages",
    ]
    assert lines[12:15] == ["", f"{paths[1]}: {address_text(sub)}", "  a sub-plan, of part"]
    assert "in none of the files" not in shown.stdout
    assert f"sub-plan {address_text(sub)} is in none of the files" in flow(paths[0]).stdout


@pytest.mark.rule("P40")
def test_a_hostile_payload_stays_within_its_cell(tmp_path: Path) -> None:
    shown = flow(*exported(tmp_path)).stdout
    assert "\x1b" not in shown
    assert "\u202e" not in shown
    assert '"x\\"]\\x0a  evil[\\"<b>`%%{init}%%`\\x1b[2J\\u202e|c…"' in shown


def test_json_tells_each_document_whole_on_a_line(tmp_path: Path) -> None:
    paths = exported(tmp_path)
    shown = flow(*paths, "--json")
    main, sub = map(json.loads, shown.stdout.splitlines())
    assert main["file"] == str(paths[0])
    assert [main["address"], sub["address"]] == [
        address_text(a) for a in documents(PLAN, MACHINE, Limits(0, 20), judge)
    ]
    assert main["document"]["plan"][0]["payload"] == HOSTILE
    assert main["document"]["plan"][1]["sub"] == sub["address"]
    assert sub["document"] == {"v": 1, "plan": [{"id": "inner", "target": "done", "gate": "none", "corrections": 1}]}
    assert shown.stdout.isascii()


def test_the_flowchart_has_steps_needs_panels_conditions_routes_and_sub_plans(tmp_path: Path) -> None:
    lines = [line.strip() for line in flow(*exported(tmp_path), "--mermaid").stdout.splitlines()]
    main, sub = map(address_text, documents(PLAN, MACHINE, Limits(0, 20), judge))
    assert lines[:2] == ["flowchart TD", f'subgraph p0["{main}"]']
    assert lines[2:6] == [
        'subgraph p0g0["panel<br/>reducer merge()"]',
        'p0s3["x<br/>to done"]',
        'p0s4["y<br/>to done"]',
        "end",
    ]
    assert 'p0s0 -->|"if choose() names it"| p0s1' in lines
    assert 'p0s0 -.->|"failed"| p0s2' in lines
    assert 'p0s1 -->|"finished"| p0s3' in lines
    assert "p0s1 --> p0s4" in lines
    assert lines[-4:] == [f'subgraph p1["{sub}"]', 'p1s0["inner<br/>to done"]', "end",
                          'p0s1 -.-o|"sub-plan<br/>up to 4 rounds"| p1']  # fmt: skip


NODE = r"p\d+(s|g)?\d*"
LABEL = r'"([A-Za-z0-9 .,:/_()=+-]|#\d+;|<br/>)*"'
LINE = re.compile(
    rf"flowchart TD|subgraph {NODE}\[{LABEL}\]|end|{NODE}\[{LABEL}\]|{NODE} (-->|-\.->|-\.-o)(\|{LABEL}\|)? {NODE}"
)


@pytest.mark.rule("P40")
def test_a_hostile_payload_cannot_leave_its_label(tmp_path: Path) -> None:
    paths = exported(tmp_path)
    lines = list(as_mermaid([Exported.read(path) for path in paths]))
    assert all(LINE.fullmatch(line.strip()) for line in lines)
    assert any("x#92;#34;#93;#92;x0a  evil" in line for line in lines)


@pytest.mark.rule("P40")
@settings(max_examples=50, deadline=None)
@given(told_plans(), st.text(max_size=20))
def test_whatever_a_plan_says_it_is_shown_in_lines_of_known_form(plan: Plan, name: str) -> None:
    shown = [Exported.of(Path(f"./{name}"), data) for data in documents(plan, MACHINE, Limits(), judge).values()]
    chart = list(as_mermaid(shown))
    assert all(LINE.fullmatch(line.strip()) for line in chart)
    assert list(as_mermaid([*shown, shown[0]])) == chart
    for one in shown:
        _, *lines = [line.plain for line in as_table(one, shown)]
        assert not [char for line in lines for char in line if category(char) in ("Cc", "Cf", "Cs", "Co", "Zl", "Zp")]
        start = next(number for number, line in enumerate(lines) if line.startswith("  step  "))
        for line, of in zip(lines[start + 1 :], one.document.plan, strict=False):
            assert line.startswith(f"  {of.id}  ")
        assert json.dumps(as_json(one))


@pytest.mark.rule("P38")
@pytest.mark.parametrize("content", [b"", b"\xa0", b"no plan", bytes(2_000_000), None])
def test_what_is_no_plan_document_is_refused_in_one_sentence(content: bytes | None, tmp_path: Path) -> None:
    path = tmp_path / "odd\x1b.plan"
    if content is not None:
        path.write_bytes(content)
    shown = flow(path)
    assert (shown.returncode, shown.stdout) == (2, "")
    assert shown.stderr.startswith("error: plan.")
    assert "odd\\x1b.plan" in shown.stderr
    assert len(shown.stderr.splitlines()) == 1


def test_two_forms_at_once_are_refused(tmp_path: Path) -> None:
    shown = flow(*exported(tmp_path), "--json", "--mermaid")
    assert (shown.returncode, shown.stdout) == (2, "")
    assert "choose one" in shown.stderr
