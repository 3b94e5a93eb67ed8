"""Fixtures: a store in this process, and engines small enough to read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_engine import Engine
from fake_store import FakeStore

from infinistore.connectors.vllm import link


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    """A fake store that every link of the test connects to."""
    fake = FakeStore()
    monkeypatch.setattr(link, "connect", fake.connect)
    return fake


@pytest.fixture
def engine(store: FakeStore) -> Iterator[Engine]:
    """An engine with one worker."""
    made = Engine(store)
    yield made
    made.close()
