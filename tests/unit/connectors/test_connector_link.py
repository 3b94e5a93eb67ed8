"""The link to the store: made behind the engine's back, and made again after a drop."""

from __future__ import annotations

import logging
import threading

import pytest
from fake_store import FakeStore

from infinistore.connectors.vllm import link as link_module
from infinistore.connectors.vllm.counters import Counters, Warner
from infinistore.connectors.vllm.link import StoreLink
from infinistore.connectors.vllm.settings import ConnectorSettings
from waiting import until

SETTINGS = ConnectorSettings()


def test_a_store_that_comes_later_is_found(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(link_module, "_RETRY_S", 0.01)
    store.is_dead = True
    link = StoreLink(SETTINGS, lambda: "ns")
    assert not link.wait_tried(5)  # returns when the attempt has failed
    assert link.client is None
    store.is_dead = False
    until(lambda: link.client is not None)
    assert link.client is store.clients[0]
    link.close()
    assert store.clients[0].is_closed


def test_making_the_link_waits_for_nothing(store: FakeStore) -> None:
    slow = threading.Event()

    def namespace() -> str:
        slow.wait(5)
        return "ns"

    link = StoreLink(SETTINGS, namespace)
    assert link.client is None
    slow.set()
    assert link.wait_tried(5)
    assert link.namespace == "ns"
    link.close()


def test_without_a_namespace_there_is_no_client(
    store: FakeStore, caplog: pytest.LogCaptureFixture
) -> None:
    def namespace() -> str:
        raise RuntimeError("no such field")

    link = StoreLink(SETTINGS, namespace)
    until(lambda: "nothing is saved or loaded" in caplog.text)
    assert link.client is None
    link.close()


def test_a_dropped_client_is_closed_before_drop_returns_and_replaced(store: FakeStore) -> None:
    link = StoreLink(SETTINGS, lambda: "ns")
    assert link.wait_tried(5)
    link.drop()
    assert store.clients[0].is_closed
    until(lambda: link.client is not None)
    assert link.client is store.clients[1]
    link.close()


def test_a_client_that_comes_after_the_end_is_closed(
    store: FakeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    connecting, may_go_on = threading.Event(), threading.Event()

    def connect(settings: object, namespace: str) -> object:
        connecting.set()
        may_go_on.wait(5)
        return store.connect(settings, namespace)

    monkeypatch.setattr(link_module, "connect", connect)
    link = StoreLink(SETTINGS, lambda: "ns")
    assert connecting.wait(5)
    link.close()
    may_go_on.set()
    until(lambda: store.clients and store.clients[0].is_closed)
    assert link.client is None


def test_a_message_is_logged_once_a_second(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    warner = Warner(logging.getLogger("test"), lambda: now[0])
    for _ in range(5):
        warner.warn("%d blocks", 3)
    now[0] = 1.5
    warner.warn("%d blocks", 4)
    assert [record.getMessage() for record in caplog.records] == [
        "3 blocks",
        "4 blocks (and 4 more like it)",
    ]


def test_counters_tell_what_is_new() -> None:
    counters = Counters()
    counters.add("lookups", 2)
    assert counters.take() == {"lookups": 2}
    assert counters.take() == {}
    counters.add("lookups")
    assert counters.take() == {"lookups": 1}
    assert counters.totals["lookups"] == 3
