"""The tables of mutants keep up with the rules and with the code; `python -m tests.mutants flow` tries them."""

from tests.mutants import complaints, table


def test_every_rule_of_the_flow_has_a_mutant_or_a_reason_and_every_mutant_its_place() -> None:
    assert list(complaints("flow")) == []
    assert len(table("flow")) > 150
