import copy
import inspect
import pickle
from typing import Any

import pytest

from flow import errors
from flow.errors import Declined, FlowError, PlanError, StepFailed

CLASSES: list[Any] = [
    kind for kind in vars(errors).values() if inspect.isclass(kind) and kind.__module__ == errors.__name__
]


@pytest.mark.rule("E1")
def test_all_errors_are_of_one_tree_and_no_two_share_a_code() -> None:
    assert all(issubclass(kind, FlowError) for kind in CLASSES)
    assert len({kind.default_code for kind in CLASSES}) == len(CLASSES)


@pytest.mark.rule("E1")
def test_an_error_shows_its_code_before_its_text() -> None:
    assert str(PlanError("no steps", code="plan.steps")) == "plan.steps: no steps"
    assert str(StepFailed("review")) == "run.step_failed: review"


@pytest.mark.rule("E1")
@pytest.mark.parametrize("through", [copy.copy, lambda error: pickle.loads(pickle.dumps(error))])  # noqa: S301
def test_an_error_is_the_same_after_a_copy(through) -> None:  # type: ignore[no-untyped-def]
    error = through(PlanError("no steps", code="plan.steps"))
    assert (str(error), error.code) == ("plan.steps: no steps", "plan.steps")


@pytest.mark.rule("E1")
def test_a_decline_carries_the_reason_as_it_was_given() -> None:
    assert Declined("not before Monday").reason == "not before Monday"


@pytest.mark.rule("E2")
def test_an_error_has_no_standing_until_a_run_fills_it_in() -> None:
    error = StepFailed("review")
    assert (error.status, error.record, error.step, error.thread) == (None, None, None, None)
    assert error.standing(status="draft", record={"n": 1}, step="review", thread="r1") is error
    assert (error.status, error.record, error.step, error.thread) == ("draft", {"n": 1}, "review", "r1")
