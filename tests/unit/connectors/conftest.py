"""Fixtures: a store in this process, and engines small enough to read."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from fake_engine import Engine
from fake_store import GPU, FakeStore

from infinistore.connectors import _streams
from infinistore.connectors.vllm import link


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FakeStore:
    """A fake store that every link of the test connects to."""
    fake = FakeStore()
    monkeypatch.setattr(link, "connect", fake.connect)
    monkeypatch.setattr(_streams, "current_stream", fake.gpu.stream)
    monkeypatch.setattr(_streams, "wait_computed", fake.gpu.synchronize)
    return fake


@pytest.fixture(params=["cpu", f"cuda:{GPU}"])
def engine(store: FakeStore, request: pytest.FixtureRequest) -> Iterator[Engine]:
    """An engine with one worker, and its KV cache in main memory or on a GPU."""
    made = Engine(store, device=request.param)
    yield made
    made.close()
