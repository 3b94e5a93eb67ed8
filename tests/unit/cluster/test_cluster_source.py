"""A client's look at a registry, which may be silent."""

from __future__ import annotations

import asyncio
import contextlib

import pytest

from fake_registry import FakeRegistry, FakeStore
from infinistore.cluster.members import source as module
from infinistore.cluster.members.source import EtcdSource
from infinistore.cluster.nodes import Node, encode_node
from infinistore.errors import LinkError


class MuteStore(FakeStore):
    """Takes a namespace in which values are replaced, and never says so."""

    def __init__(self) -> None:
        super().__init__()
        self.put("a", encode_node(Node("a", "a:1", incarnation=1)).encode(), 0)
        self.is_mute = True

    def open(self, attempt: int) -> FakeRegistry:
        return MuteRegistry(self)


class MuteRegistry(FakeRegistry):
    async def mark_replacing(self, namespace: str) -> None:
        if self._store.is_mute:  # type: ignore[attr-defined]
            await asyncio.Event().wait()
        await super().mark_replacing(namespace)


def test_a_registry_that_is_silent_ends_a_first_replacement(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    store = MuteStore()
    monkeypatch.setattr(module, "etcd_registry", lambda address, timeout_s: store.open)
    monkeypatch.setattr(module, "MARK_S", 0.2)
    with contextlib.closing(EtcdSource("infinistore+etcd://h/kv")) as source:
        with pytest.raises(LinkError, match=r"'prompts'.*try again later"):
            source.tell_replacing("prompts")
        assert store.replacing == set()
        store.is_mute = False
        source.tell_replacing("prompts")
        assert store.replacing == {"prompts"}
