"""Nodes that come and go: who is restless, and when no longer."""

from __future__ import annotations

import pytest

from infinistore.cluster.node.arrivals import RESTLESS_COUNT, RESTLESS_S, Arrivals
from infinistore.cluster.nodes import Node

STEADY = Node("steady", "h:1", incarnation=1)


@pytest.fixture
def now() -> list[float]:
    return [100.0]


@pytest.fixture
def arrivals(now: list[float]) -> Arrivals:
    return Arrivals(clock=lambda: now[0])


def flapping(incarnation: int) -> Node:
    return Node("flapping", "h:2", incarnation=incarnation)


def test_a_node_that_starts_again_and_again_is_restless(
    arrivals: Arrivals, now: list[float]
) -> None:
    for incarnation in range(1, RESTLESS_COUNT + 1):
        arrivals.see([STEADY, flapping(incarnation)])
        now[0] += 1
    assert arrivals.restless() == set()
    arrivals.see([STEADY, flapping(RESTLESS_COUNT + 1)])
    assert arrivals.restless() == {"flapping"}
    arrivals.see([STEADY])
    assert arrivals.restless() == set()  # who is not there needs no care
    arrivals.see([STEADY, flapping(RESTLESS_COUNT + 1)])
    assert arrivals.restless() == {"flapping"}
    now[0] += RESTLESS_S
    arrivals.see([STEADY, flapping(RESTLESS_COUNT + 1)])
    assert arrivals.restless() == set()


def test_a_node_that_is_lost_and_found_is_restless_too(arrivals: Arrivals) -> None:
    for _ in range(RESTLESS_COUNT + 1):
        arrivals.see([STEADY, flapping(1)])
        arrivals.see([STEADY])
    arrivals.see([STEADY, flapping(1)])
    assert arrivals.restless() == {"flapping"}


def test_that_an_incarnation_becomes_known_is_no_arrival(arrivals: Arrivals) -> None:
    for _ in range(RESTLESS_COUNT + 1):
        arrivals.see([STEADY, flapping(0)])
        arrivals.see([STEADY, flapping(7)])
    assert arrivals.restless() == set()
