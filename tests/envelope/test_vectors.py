"""The vectors of `vectors/`: their form, their coverage, and that the package answers each as it should."""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from envelope.audit import verify_file, verify_thread
from envelope.rules import BY_CODE, RULES
from tests.conformance import AXES, VECTORS, answer, arguments, grade, package, vectors
from tests.vectorgen import main

ALL = vectors()
IDS = sorted(ALL)
POSITIVE = [name for name in IDS if "derive" not in ALL[name]]
DERIVED = [name for name in IDS if "derive" in ALL[name]]
SCHEMA = json.loads((VECTORS / "schema.json").read_text(encoding="ascii"))

NOT_BY_VECTORS = {"key.length"}
"""Rules that no envelope can break: a key of another length is `header.kid` in a header and `body.value` in a body."""

REFRAMED = {"cbor.trailing.envelope": ("cose.tag", 8)}
"""Cases whose bytes fall into other records when they are a file, with the code and the index that the file has.

What follows an envelope's signature is, in a file, the next record.
"""


def test_there_are_at_least_30_positive_cases() -> None:
    assert len(POSITIVE) >= 30


def test_the_files_are_what_the_generator_writes() -> None:
    assert main(["--check"]) == 0


@pytest.mark.parametrize("name", IDS)
def test_a_vector_keeps_to_the_schema(name: str) -> None:
    Draft202012Validator(SCHEMA).validate(ALL[name])
    assert ALL[name]["id"] == name


def test_the_schema_is_one() -> None:
    Draft202012Validator.check_schema(SCHEMA)


@pytest.mark.parametrize("path", [(), ("input",), ("expect",), ("derive",), ("intermediates",), ("input", "trust", 0)])
def test_an_unknown_key_is_against_the_schema(path: tuple[str | int, ...]) -> None:
    vector = json.loads(json.dumps(ALL["chain.seq.ahead"]))
    place: Any = vector
    for step in path:
        place = place[step]
    place["note"] = "x"
    assert not Draft202012Validator(SCHEMA).is_valid(vector)


@pytest.mark.parametrize("name", ["derive", "intermediates"])
def test_what_is_absent_is_not_null(name: str) -> None:
    assert not Draft202012Validator(SCHEMA).is_valid(ALL["chain.seq.ahead"] | {name: None})


def test_the_package_answers_every_vector_as_expected() -> None:
    assert grade(package) == []


@pytest.mark.parametrize("name", IDS)
def test_a_file_of_the_records_is_answered_alike(name: str, tmp_path: Path) -> None:
    given, expected = ALL[name]["input"], ALL[name]["expect"]
    path = tmp_path / "records.thread"
    path.write_bytes(bytes.fromhex("".join(given["records"])))
    found = answer(verify_file(path, **arguments(given)))
    if name in REFRAMED:
        assert (found["code"], found["at"]) == REFRAMED[name]
    else:
        assert found == expected


def test_a_case_whose_records_fall_apart_otherwise_in_a_file_is_refused_as_a_list_too() -> None:
    assert all(ALL[name]["expect"]["code"] not in (None, code) for name, (code, _) in REFRAMED.items())


@pytest.mark.parametrize("name", DERIVED)
def test_with_its_defect_put_right_a_derived_case_verifies(name: str) -> None:
    origin = ALL[ALL[name]["derive"]["from"]]
    assert "derive" not in origin
    assert origin["expect"]["integrity"] == "valid"
    assert origin["expect"]["code"] is None
    assert origin["input"] != ALL[name]["input"]


@pytest.mark.parametrize("name", IDS)
def test_an_expectation_is_consistent(name: str) -> None:
    expected = ALL[name]["expect"]
    refusals = [f for f in expected["findings"] if BY_CODE[f["code"]].effect in ("invalid", "unverifiable")]
    if expected["code"] is None:
        assert (expected["integrity"], expected["at"], refusals) == ("valid", None, [])
    else:
        assert refusals[0] == {"code": expected["code"], "index": expected["at"]}
        effect = BY_CODE[expected["code"]].effect
        assert expected["integrity"] == effect
        assert BY_CODE[expected["code"]].number in ALL[name]["rules"]
    effects = {BY_CODE[finding["code"]].effect for finding in expected["findings"]}
    assert ("incomplete" in effects) == (expected["completeness"] == "truncated")
    assert "trust" not in effects or expected["trust"] == "unknown"


def exit_code(expected: dict[str, Any]) -> int:
    """Return the exit code of a verdict, by the table of `spec/protocol.md`."""
    if expected["integrity"] != "valid" or expected["completeness"] == "forked" or expected["plan"] == "departed":
        return 1
    if expected["trust"] != "trusted":
        return 4
    if expected["completeness"] in ("open", "truncated"):
        return 3
    codes = {finding["code"] for finding in expected["findings"]}
    return 5 if expected["outcome"] != "completed" or "seal.open_request" in codes else 0


@pytest.mark.parametrize("name", IDS)
def test_the_exit_code_follows_from_the_verdict(name: str) -> None:
    given = ALL[name]["input"]
    verdict = verify_thread(map(bytes.fromhex, given["records"]), **arguments(given))
    assert verdict.exit_code == exit_code(ALL[name]["expect"])


def test_every_exit_code_of_a_verdict_occurs() -> None:
    assert {exit_code(vector["expect"]) for vector in ALL.values()} == {0, 1, 3, 4, 5}


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_is_broken_by_two_vectors_that_name_it(rule: Any) -> None:
    pinned = [ALL[name] for name in IDS if rule.number in ALL[name]["rules"]]
    shown = [v for v in pinned if any(finding["code"] == rule.code for finding in v["expect"]["findings"])]
    if rule.code in NOT_BY_VECTORS:
        assert shown == []
        return
    assert len(shown) >= 2
    if rule.effect in ("invalid", "unverifiable"):
        assert all(vector["expect"]["code"] == rule.code for vector in shown)
        assert all("derive" in vector for vector in shown)


def test_no_two_vectors_have_the_same_input() -> None:
    same = defaultdict(list)
    for name in IDS:
        same[json.dumps(ALL[name]["input"], sort_keys=True)].append(name)
    assert [names for names in same.values() if len(names) > 1] == []


ACCEPTED = dict(zip(AXES, ("valid", "sealed", "completed", "trusted", "none"), strict=True))
REFUSED = dict(zip(AXES, ("invalid", "open", None, "unknown", "none"), strict=True))


def test_a_verifier_that_accepts_everything_fails() -> None:
    failures = grade(lambda given: ACCEPTED | {"code": None, "at": None, "findings": []})
    assert len({line.split(":")[0] for line in failures}) > 400


def test_a_verifier_that_refuses_everything_fails() -> None:
    failures = grade(lambda given: REFUSED | {"code": "signature.invalid", "at": 0, "findings": []})
    assert {line.split(":")[0] for line in failures} >= set(POSITIVE)


def test_a_verifier_that_crashes_fails() -> None:
    def crash(given: dict[str, Any]) -> dict[str, Any]:
        raise RuntimeError("no")

    assert len(grade(crash)) == len(ALL)


def test_verdict_and_code_are_graded_apart() -> None:
    vector = ALL["chain.seq.ahead"]
    wrong = vector["expect"] | {"code": "chain.prev"}
    assert grade(lambda given: wrong, [vector]) == ["chain.seq.ahead: code is 'chain.prev', not 'chain.seq'"]
