"""Spans of lookups, loads and saves, for OpenTelemetry; nothing where its SDK is not installed.

They go to the provider that is set in the engine's process. A span is made when what it tells of
is over: nothing is open meanwhile, and nothing is left open by a failure.
"""

from __future__ import annotations

import functools
import importlib.util
import time
from collections.abc import Mapping
from typing import Any


def record(
    name: str,
    seconds: float,
    attributes: Mapping[str, str | int],
    *,
    failure: str = "",
    headers: object = None,
) -> None:
    """Tells of what took `seconds` until now. `headers`: of the request's own trace, if it has."""
    api = _api()
    if api is None:
        return
    trace, propagate = api
    end_ns = time.time_ns()
    parent = propagate.extract(headers) if isinstance(headers, Mapping) else None
    span = trace.get_tracer("infinistore").start_span(
        f"infinistore.{name}",
        context=parent,
        kind=trace.SpanKind.CLIENT,
        start_time=end_ns - round(max(0.0, seconds) * 1e9),
        attributes={f"infinistore.{key}": value for key, value in attributes.items()},
    )
    if failure:
        span.set_status(trace.StatusCode.ERROR, failure)
    span.end(end_ns)


@functools.cache
def _api() -> tuple[Any, Any] | None:
    """OpenTelemetry's modules trace and propagate; None without the SDK: spans go nowhere."""
    try:
        if importlib.util.find_spec("opentelemetry.sdk") is None:
            return None
        from opentelemetry import propagate, trace
    except ImportError:
        return None
    return trace, propagate
