"""Spans of lookups, loads and saves, taken by OpenTelemetry's own exporter in memory."""

from __future__ import annotations

from typing import Any

import pytest
from fake_engine import Engine, Request, StepOutput
from fake_store import FakeStore

from infinistore.connectors import _spans
from infinistore.errors import Code

trace = pytest.importorskip("opentelemetry.trace")
pytest.importorskip("opentelemetry.sdk.trace")

PROMPT = list(range(10, 31))  # 5 whole blocks and one token
BLOCKS = [7, 3, 9, 12, 40, 41]
OTHERS = [20, 21, 22, 23, 24, 25]


@pytest.fixture
def spans(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The exporter of a provider of the test's own: the process's can be set only once."""
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SimpleSpanProcessor
    from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

    exporter, provider = InMemorySpanExporter(), TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(exporter))
    monkeypatch.setattr(trace, "get_tracer", provider.get_tracer)
    yield exporter
    provider.shutdown()


def load(engine: Engine, request: Request) -> None:
    tokens, _ = engine.match(request)
    engine.scheduler.after_allocation(request, [OTHERS], tokens or 0)
    engine.begin(StepOutput())
    engine.worker.start_loads()
    engine.end()


def test_a_save_a_lookup_and_a_load_are_spans(engine: Engine, spans: Any) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    load(engine, Request("s", PROMPT))
    lookup, save, again, loaded = spans.get_finished_spans()
    assert [each.name for each in (lookup, save, again, loaded)] == [
        f"infinistore.{name}" for name in ("lookup", "save", "lookup", "load")
    ]
    size = engine.worker.value_bytes
    assert dict(lookup.attributes) == {
        "infinistore.request_id": "r", "infinistore.blocks": 5, "infinistore.hit_blocks": 0
    }  # fmt: skip
    assert save.attributes["infinistore.blocks"] == 5
    assert save.attributes["infinistore.bytes"] == 5 * size
    assert again.attributes["infinistore.hit_blocks"] == 5
    assert loaded.attributes["infinistore.request_id"] == "s"
    assert loaded.attributes["infinistore.bytes"] == 5 * size
    for each in (lookup, save, again, loaded):
        assert each.end_time >= each.start_time
        assert each.status.is_unset


def test_a_span_lasts_from_the_question_to_the_answer(
    engine: Engine, store: FakeStore, spans: Any
) -> None:
    store.hold_lookups = True
    request = Request("r", PROMPT)
    assert engine.match(request) == (None, False)
    assert spans.get_finished_spans() == ()
    engine.clock.now_s += 0.3
    assert engine.match(request) == (0, False)
    (late,) = spans.get_finished_spans()
    assert (late.end_time - late.start_time) / 1e9 == pytest.approx(0.3, abs=1e-6)
    assert late.status.description == "no answer in time"


def test_a_load_that_fails_says_why(engine: Engine, store: FakeStore, spans: Any) -> None:
    engine.prefill(Request("r", PROMPT), BLOCKS)
    key = next(key for (_, key), (_, depth) in store.chains.items() if depth == 3)
    store.read_codes[key] = Code.MISSING
    load(engine, Request("s", PROMPT))
    failed = spans.get_finished_spans()[-1]
    assert (failed.name, failed.status.description) == ("infinistore.load", "missing")
    assert failed.attributes["infinistore.failed"] == 1


def test_a_lookup_is_part_of_its_request_s_trace(engine: Engine, spans: Any) -> None:
    request: Any = Request("r", PROMPT)
    trace_id = "0af7651916cd43dd8448eb211c80319c"
    request.trace_headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    engine.match(request)
    (lookup,) = spans.get_finished_spans()
    assert f"{lookup.context.trace_id:032x}" == trace_id


def test_without_the_sdk_nothing_happens(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> None:
    def find_spec(name: str) -> None:
        raise ModuleNotFoundError(name)  # as for a submodule of what is not there

    _spans._api.cache_clear()
    monkeypatch.setattr(_spans.importlib.util, "find_spec", find_spec)
    try:
        assert _spans._api() is None
        engine.prefill(Request("r", PROMPT), BLOCKS)
        load(engine, Request("s", PROMPT))
    finally:
        _spans._api.cache_clear()
    assert engine.worker.counters.totals["blocks_loaded"] == 5
