import ast
import inspect
import math

import pytest

import flow.heartbeat
from flow.errors import HeartbeatError
from flow.heartbeat import Monitor


@pytest.mark.rule("H1")
@pytest.mark.parametrize("timeout", [0, -1, math.inf, math.nan])
def test_a_timeout_that_is_not_above_zero_is_refused(timeout: float) -> None:
    with pytest.raises(HeartbeatError, match="above 0") as caught:
        Monitor(timeout)
    assert caught.value.code == "heartbeat.timeout"


@pytest.mark.rule("H1")
def test_a_timeout_may_be_short() -> None:
    monitor = Monitor(0.001)
    monitor.beat("a", 0)
    assert (monitor.alive("a", 0.001), monitor.alive("a", 0.002)) == (True, False)


@pytest.mark.rule("H2")
@pytest.mark.parametrize("blank", ["", " \t\n"])
def test_a_beat_with_a_blank_id_is_refused(blank: str) -> None:
    monitor = Monitor(10)
    with pytest.raises(HeartbeatError, match="blank") as caught:
        monitor.beat(blank, 0)
    assert caught.value.code == "heartbeat.id"
    assert monitor.dead(100) == []


@pytest.mark.rule("H3")
def test_a_beat_older_than_the_last_is_refused_and_changes_nothing() -> None:
    monitor = Monitor(10)
    monitor.beat("a", 5)
    with pytest.raises(HeartbeatError, match="older") as caught:
        monitor.beat("a", 4)
    assert caught.value.code == "heartbeat.stale"
    assert monitor.alive("a", 15)


@pytest.mark.rule("H3")
def test_a_second_beat_of_the_same_time_is_taken() -> None:
    monitor = Monitor(10)
    monitor.beat("a", 5)
    monitor.beat("a", 5)
    assert monitor.alive("a", 5)


@pytest.mark.rule("H3")
def test_ids_do_not_make_each_other_stale() -> None:
    monitor = Monitor(10)
    monitor.beat("a", 50)
    monitor.beat("b", 5)
    assert monitor.alive("b", 5)


@pytest.mark.rule("H4")
@pytest.mark.parametrize(("now", "alive"), [(5, True), (15, True), (15.001, False), (4, True)])
def test_an_id_is_alive_within_the_timeout_after_its_beat_and_before_it(now: float, alive: bool) -> None:
    monitor = Monitor(10)
    monitor.beat("a", 5)
    assert monitor.alive("a", now) is alive


@pytest.mark.rule("H4")
def test_a_new_beat_keeps_an_id_alive() -> None:
    monitor = Monitor(10)
    monitor.beat("a", 0)
    monitor.beat("a", 10)
    assert monitor.alive("a", 20)


@pytest.mark.rule("H4")
def test_an_id_that_never_beat_is_not_alive() -> None:
    assert not Monitor(10).alive("a", 0)


@pytest.mark.rule("H5")
def test_the_dead_are_sorted_and_do_not_include_the_living() -> None:
    monitor = Monitor(10)
    for beating, at in (("c", 0), ("a", 0), ("b", 0), ("living", 15)):
        monitor.beat(beating, at)
    assert monitor.dead(20) == ["a", "b", "c"]


@pytest.mark.rule("H5")
def test_the_dead_are_told_again_until_they_beat() -> None:
    monitor = Monitor(10)
    monitor.beat("a", 0)
    assert (monitor.dead(20), monitor.dead(20)) == (["a"], ["a"])
    monitor.beat("a", 20)
    assert monitor.dead(20) == []


@pytest.mark.rule("H6")
def test_a_forgotten_id_is_neither_alive_nor_dead() -> None:
    monitor = Monitor(10)
    monitor.beat("a", 0)
    monitor.forget("a")
    assert not monitor.alive("a", 0)
    assert monitor.dead(20) == []


@pytest.mark.rule("H6")
def test_a_forgotten_id_may_start_again_at_any_time() -> None:
    monitor = Monitor(10)
    monitor.beat("a", 50)
    monitor.forget("a")
    monitor.beat("a", 5)
    assert monitor.alive("a", 5)


@pytest.mark.rule("H6")
def test_forgetting_an_unknown_id_changes_nothing() -> None:
    monitor = Monitor(10)
    monitor.beat("a", 0)
    monitor.forget("b")
    assert monitor.alive("a", 0)


@pytest.mark.rule("H7")
def test_the_monitor_has_no_clock_and_starts_nothing() -> None:
    tree = ast.parse(inspect.getsource(flow.heartbeat))
    imported = {
        node.module if isinstance(node, ast.ImportFrom) else node.names[0].name
        for node in ast.walk(tree)
        if isinstance(node, ast.Import | ast.ImportFrom)
    }
    assert imported == {"math", "flow.errors"}
