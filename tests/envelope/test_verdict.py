"""What a verdict says, and what it makes a command's exit code be."""

import json
from itertools import product
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st

from envelope import EnvelopeError, Finding, Identity, ThreadVerdict, address, did_key
from envelope.records import Outcome
from envelope.rules import BY_CODE, STAGES
from envelope.verdict import Completeness, Integrity, PlanState, Signer, Trust

KEY = Identity.from_seed(bytes(32)).public_key
OUTCOMES: tuple[str | None, ...] = (None, *get_args(Outcome))


def finding(code: str, **changes: Any) -> Finding:
    rule = BY_CODE[code]
    fields = {"index": 3, "offset": 400, "address": address(b"record"), "text": "What was found.", **changes}
    return Finding(code, rule.number, rule.stage, rule.effect, **fields)


def verdict(**changes: Any) -> ThreadVerdict:
    fields: dict[str, Any] = {
        "integrity": "valid", "completeness": "sealed", "outcome": "completed", "trust": "trusted", "plan": "none",
        "code": None, "thread": address(b"thread"), "name": "release-42",
        "tip": address(b"tip"), "records": 7, "pending": 0, "messages": 3,
        "acknowledged": 2, "approved": 1, "declined": 0, "ungated": 0, "findings": (), "omitted": 0,
        "signers": (Signer(KEY, "trusted", "Ada", "human", "ada"),),
    }  # fmt: skip
    return ThreadVerdict(**{**fields, **changes})


OPEN_REQUEST = finding("seal.open_request")

# Every state that the axes can be in, and the code that the table of `spec/protocol.md` gives it.
STATES = list(
    product(
        get_args(Integrity),
        get_args(Completeness),
        OUTCOMES,
        get_args(Trust),
        get_args(PlanState),
        ((), (OPEN_REQUEST,), (finding("seal.open_challenge"), finding("message.declined"))),
    )
)


def expected_code(integrity: str, completeness: str, outcome: str | None, trust: str, findings: Any) -> int:
    applies = {
        1: integrity in ("invalid", "unverifiable"),
        4: trust != "trusted",
        3: completeness in ("open", "truncated"),
        5: outcome != "completed" or OPEN_REQUEST in findings,
    }
    return next((code for code in (1, 4, 3, 5) if applies[code]), 0)


def test_the_exit_code_is_the_first_of_the_table_that_applies_in_every_state() -> None:
    assert len(STATES) == 3 * 3 * 6 * 2 * 2 * 3
    for integrity, completeness, outcome, trust, plan, findings in STATES:
        found = verdict(
            integrity=integrity, completeness=completeness, outcome=outcome, trust=trust, plan=plan, findings=findings
        ).exit_code
        assert found == expected_code(integrity, completeness, outcome, trust, findings)


@pytest.mark.parametrize("code", sorted(code for code, rule in BY_CODE.items() if rule.effect == "note"))
def test_a_note_never_changes_the_exit_code(code: str) -> None:
    assert verdict(findings=(finding(code),)).exit_code == 0


def test_a_verdict_is_no_truth_value_that_could_be_taken_for_one() -> None:
    for changed in (verdict(), verdict(integrity="invalid")):
        with pytest.raises(TypeError, match="require"):
            bool(changed)
    for name in ("__len__", "valid", "ok"):
        assert not hasattr(ThreadVerdict, name)


def test_a_verdict_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        verdict(integrity="invalid").integrity = "valid"  # type: ignore[misc]


# --------------------------------------------------------------------------------------------------------- require


def test_require_passes_when_every_word_is_so() -> None:
    verdict().require()
    verdict().require("valid", "sealed", "completed", "trusted")
    verdict(outcome="cancelled").require("sealed", "cancelled", "trusted")
    verdict(completeness="open", outcome=None, trust="unknown").require("open", "unknown")


@pytest.mark.parametrize(
    ("changes", "wanted"),
    [
        ({"completeness": "open", "outcome": None}, "sealed"),
        ({"completeness": "truncated"}, "sealed"),
        ({"outcome": "failed"}, "completed"),
        ({"outcome": None}, "completed"),
        ({"trust": "unknown"}, "trusted"),
    ],
)
def test_require_refuses_what_is_not_so_and_names_it(changes: dict[str, Any], wanted: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        verdict(**changes).require(wanted)
    assert caught.value.code == "verdict.unmet"
    assert f"not {wanted}" in caught.value.text
    assert str(verdict(**changes)) in caught.value.text


@pytest.mark.parametrize("integrity", ["invalid", "unverifiable"])
@pytest.mark.parametrize("wanted", [(), ("sealed",), ("completed", "trusted")])
def test_require_always_demands_that_the_thread_is_valid(integrity: str, wanted: tuple[str, ...]) -> None:
    with pytest.raises(EnvelopeError, match="not valid"):
        verdict(integrity=integrity, code="signature.invalid").require(*wanted)


def test_require_names_all_that_is_unmet() -> None:
    with pytest.raises(EnvelopeError) as caught:
        verdict(integrity="invalid", trust="unknown", completeness="open").require("sealed", "trusted")
    assert "not valid, not sealed, not trusted" in caught.value.text


@pytest.mark.parametrize("trust", ["trusted", "unknown"])
@pytest.mark.parametrize("completeness", ["sealed", "truncated"])
def test_completed_demands_that_no_request_was_left_open_whatever_else_is_not_so(trust: str, completeness: str) -> None:
    with pytest.raises(EnvelopeError) as caught:
        verdict(trust=trust, completeness=completeness, findings=(OPEN_REQUEST,)).require("completed")
    assert "open request" in caught.value.text


def test_an_open_request_does_not_matter_where_completed_was_not_required() -> None:
    verdict(findings=(OPEN_REQUEST,)).require("sealed", "trusted")


# -------------------------------------------------------------------------------------------------- text and JSON


def test_the_first_line_names_every_axis() -> None:
    assert str(verdict()) == "valid, sealed, outcome completed, trust trusted"
    changed = verdict(integrity="invalid", code="chain.fork", completeness="open", outcome=None, trust="unknown")
    assert str(changed) == "invalid (chain.fork), open, outcome none, trust unknown"


def test_the_first_line_says_that_a_named_plan_was_not_checked() -> None:
    assert str(verdict(plan="unchecked")).endswith("plan unchecked")
    assert "plan" not in str(verdict())


def test_a_verdict_as_json_is_json_and_holds_every_field_and_the_exit_code() -> None:
    changed = verdict(findings=(OPEN_REQUEST, finding("trust.none", index=None, offset=None, address=None)))
    data = json.loads(json.dumps(changed.as_json()))
    assert data == changed.as_json()
    assert set(data) == {*ThreadVerdict.__dataclass_fields__, "exit_code"}
    assert data["exit_code"] == 5
    assert data["thread"] == "b3:" + address(b"thread").hex()
    assert data["tip"] == "b3:" + address(b"tip").hex()
    assert data["signers"] == [
        {"key": did_key(KEY), "trust": "trusted", "name": "Ada", "role": "human", "claimed_name": "ada"}
    ]
    assert data["findings"][0] == {
        "code": "seal.open_request",
        "rule": BY_CODE["seal.open_request"].number,
        "stage": "settle",
        "effect": "outcome",
        "index": 3,
        "offset": 400,
        "address": "b3:" + address(b"record").hex(),
        "text": "What was found.",
        "advice": OPEN_REQUEST.advice,
    }
    assert data["findings"][1]["address"] is None


def test_a_verdict_on_nothing_as_json_has_no_thread_and_no_tip() -> None:
    data = verdict(thread=None, name=None, tip=None).as_json()
    assert (data["thread"], data["name"], data["tip"]) == (None, None, None)


@given(st.text(max_size=40), st.text(max_size=40))
def test_whatever_text_a_verdict_holds_its_json_reads_back(name: str, text: str) -> None:
    changed = verdict(name=name, findings=(finding("chain.prev", text=text),))
    data = json.loads(json.dumps(changed.as_json(), ensure_ascii=True))
    assert (data["name"], data["findings"][0]["text"]) == (name, text)


@pytest.mark.parametrize("code", sorted(BY_CODE))
def test_every_finding_says_what_to_do(code: str) -> None:
    advice = finding(code).advice
    assert advice[0].isupper()
    assert advice.endswith(".")


def test_a_finding_of_any_stage_that_has_rules_says_what_to_do_by_its_stage() -> None:
    stages = {rule.stage for rule in BY_CODE.values()}
    for stage in STAGES:
        if stage in stages:
            assert Finding("x.y", "0.0", stage, "invalid", None, None, None, "").advice
