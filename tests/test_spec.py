"""`spec/protocol.md`, `spec/rules.toml` and the registry in `envelope.rules` say the same."""

import re
import tomllib
from collections import Counter
from dataclasses import asdict
from pathlib import Path

import pytest

from envelope.keys import SMALL_ORDER
from envelope.rules import BY_CODE, RULES, STAGES, Rule
from tests.specgen import TARGET, rules_toml

PROTOCOL = Path(__file__).parents[1] / "spec" / "protocol.md"

RULE = re.compile(r"- \*\*(\d+\.\d+)\*\* `([a-z_]+\.[a-z0-9_]+)` — (\S.*)")
HEADING = re.compile(r"(#+) (.+)")
EFFECT = re.compile(r" Effect: ([a-z]+)\.$")


def _slug(heading: str) -> str:
    """Return the anchor that GitHub gives a heading."""
    return re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")


def _lines() -> list[tuple[tuple[str, ...], str]]:
    """Return each line outside code blocks with the anchors of the sections it stands in, outermost first."""
    path: list[tuple[int, str]] = []
    found = []
    for line in PROTOCOL.read_text(encoding="utf-8").splitlines():
        if line.startswith("    "):
            continue
        if match := HEADING.fullmatch(line):
            depth = len(match[1])
            path = [*(entry for entry in path if entry[0] < depth), (depth, _slug(match[2]))]
        found.append((tuple(slug for _, slug in path), line))
    return found


LINES = _lines()
STATED = [(anchors, match) for anchors, line in LINES if (match := RULE.fullmatch(line))]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_has_one_line_with_its_number_in_the_section_of_its_anchor(rule: Rule) -> None:
    stated = [(anchors, match[1]) for anchors, match in STATED if match[2] == rule.code]
    assert len(stated) == 1
    anchors, number = stated[0]
    assert number == rule.number
    assert rule.anchor in anchors


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.code)
def test_a_rule_states_its_effect_unless_it_refuses(rule: Rule) -> None:
    text = next(match[3] for _, match in STATED if match[2] == rule.code)
    effect = EFFECT.search(text)
    assert (effect[1] if effect else "invalid") == rule.effect


def test_every_line_of_a_rule_is_in_the_registry() -> None:
    assert {match[2] for _, match in STATED} == set(BY_CODE)


def test_every_line_that_begins_as_a_rule_is_written_as_one() -> None:
    assert [line for _, line in LINES if line.startswith("- **") and not RULE.fullmatch(line)] == []


def test_rules_stand_in_the_order_of_their_numbers_within_a_stage() -> None:
    numbers = [tuple(map(int, match[1].split("."))) for _, match in STATED]
    for stage in range(1, len(STAGES) + 1):
        of_stage = [number for number in numbers if number[0] == stage]
        assert of_stage == sorted(of_stage)


def test_every_code_that_the_text_names_is_in_the_registry() -> None:
    families = {code.split(".")[0] for code in BY_CODE}
    named = {
        code
        for _, line in LINES
        for code in re.findall(r"`([a-z]+\.[a-z0-9_]+)`", line)
        if code.split(".")[0] in families and not code.endswith((".md", ".toml", ".cddl"))
    }
    fields = {"provenance.chain", "provenance.source", "open.plan", "limits.bytes", "limits.messages"}
    assert named - fields <= set(BY_CODE)


def test_every_number_that_the_text_refers_to_is_a_rule_s() -> None:
    sections = {rule.anchor for rule in RULES} - {"cbor", "header"} | {"verdict"}
    numbers = {
        number
        for anchors, line in LINES
        if sections.intersection(anchors)
        for number in re.findall(r"(?<![\d.`])(\d{1,2}\.\d{1,2})(?![\d.]*\d)", line)
    }
    assert numbers <= {rule.number for rule in RULES}


def test_anchors_are_unique_and_links_within_the_document_lead_somewhere() -> None:
    slugs = Counter(_slug(match[2]) for _, line in LINES if (match := HEADING.fullmatch(line)))
    assert [slug for slug, count in slugs.items() if count > 1] == []
    links = {link for _, line in LINES for link in re.findall(r"\]\(#([^)]+)\)", line)}
    assert links <= set(slugs)


def test_the_14_encodings_of_small_order_are_those_that_are_refused() -> None:
    listed = re.findall(r"^ {4}([0-9a-f]{64})$", PROTOCOL.read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert len(listed) == 14
    assert {bytes.fromhex(encoding) for encoding in listed} == SMALL_ORDER


def test_the_stages_are_listed_in_order() -> None:
    text = " ".join(PROTOCOL.read_text(encoding="utf-8").split())
    assert f"The stages are, in order: {', '.join(STAGES)}." in text


def test_rules_toml_is_what_the_registry_generates() -> None:
    assert TARGET.read_text(encoding="utf-8") == rules_toml()


def test_rules_toml_reads_as_the_registry() -> None:
    table = tomllib.loads(TARGET.read_text(encoding="utf-8"))
    assert table == {"stages": list(STAGES), "rules": [asdict(rule) for rule in RULES]}


def test_the_place_of_the_example_is_marked_once() -> None:
    text = PROTOCOL.read_text(encoding="utf-8")
    assert text.count("<!-- example:begin -->") == 1
    assert text.count("<!-- example:end -->") == 1
    assert text.index("<!-- example:begin -->") < text.index("<!-- example:end -->")
