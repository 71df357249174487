from dataclasses import FrozenInstanceError
from typing import Any

import pytest

from flow.budget import Limits
from flow.errors import BudgetError


@pytest.mark.rule("L1")
@pytest.mark.parametrize("cap", [-1, 1.0, True, "5", None, 2**53])
@pytest.mark.parametrize("field", ["max_bytes", "max_messages"])
def test_a_cap_that_is_no_whole_number_from_zero_is_refused_by_name(field: str, cap: Any) -> None:
    with pytest.raises(BudgetError, match=field) as caught:
        Limits(**{field: cap})
    assert caught.value.code == "budget.limit"


@pytest.mark.rule("L1")
def test_the_largest_cap_is_taken() -> None:
    assert Limits(2**53 - 1, 2**53 - 1).fits(0, 0, 2**53 - 1, 2**53 - 1)


@pytest.mark.rule("L1")
def test_limits_cannot_be_changed() -> None:
    with pytest.raises(FrozenInstanceError):
        Limits().max_bytes = -1  # type: ignore[misc]


@pytest.mark.rule("L2")
@pytest.mark.parametrize(
    ("more_bytes", "more_messages", "fits"), [(4, 1, True), (5, 1, False), (4, 2, False), (0, 0, True), (5, 2, False)]
)
def test_what_reaches_a_cap_fits_and_what_exceeds_either_does_not(
    more_bytes: int, more_messages: int, fits: bool
) -> None:
    assert Limits(max_bytes=10, max_messages=3).fits(6, 2, more_bytes, more_messages) is fits


@pytest.mark.rule("L2")
def test_the_smallest_cap_holds() -> None:
    assert not Limits(max_bytes=1).fits(1, 0, 1, 0)
    assert not Limits(max_messages=1).fits(0, 1, 0, 1)


@pytest.mark.rule("L3")
def test_zero_is_no_cap() -> None:
    assert Limits().fits(10**12, 10**12, 1, 1)
    assert Limits(max_bytes=1).fits(0, 10**12, 1, 1)
    assert Limits(max_messages=1).fits(10**12, 0, 1, 1)


@pytest.mark.rule("L3")
@pytest.mark.parametrize(
    ("limits", "written"),
    [
        (Limits(), {}),
        (Limits(5), {"bytes": 5}),
        (Limits(0, 6), {"messages": 6}),
        (Limits(5, 6), {"bytes": 5, "messages": 6}),
    ],
)
def test_a_cap_is_written_down_only_if_there_is_one(limits: Limits, written: dict[str, int]) -> None:
    assert limits.document() == written


@pytest.mark.rule("L4")
@pytest.mark.parametrize("margin", [-1, 100, 1.0, True, None])
def test_a_margin_that_is_no_percentage_below_a_hundred_is_refused(margin: Any) -> None:
    with pytest.raises(BudgetError, match="margin"):
        Limits(max_bytes=10, margin=margin)


@pytest.mark.rule("L4")
@pytest.mark.parametrize(
    ("used_bytes", "used_messages", "low"), [(800, 8, False), (801, 0, True), (0, 9, True), (2000, 0, True)]
)
def test_the_margin_begins_above_the_rest_of_a_cap(used_bytes: int, used_messages: int, low: bool) -> None:
    assert Limits(max_bytes=1000, max_messages=10, margin=20).is_low(used_bytes, used_messages) is low


@pytest.mark.rule("L4")
def test_without_a_margin_or_a_cap_nothing_is_low() -> None:
    assert not Limits(max_bytes=10).is_low(10, 10)
    assert not Limits(margin=50).is_low(10**9, 10**9)


@pytest.mark.rule("L4")
def test_a_margin_stands_in_no_document() -> None:
    assert Limits(max_bytes=10, margin=50).document() == {"bytes": 10}
