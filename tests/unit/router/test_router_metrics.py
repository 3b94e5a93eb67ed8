"""The router's Prometheus text."""

from __future__ import annotations

from infinistore.router.metrics import RouterMetrics


def test_counts_gauges_and_buckets_are_in_the_text():
    metrics = RouterMetrics()
    metrics.requests["ok"] += 2
    metrics.prefills["http://p", "failed"] += 1
    metrics.decodes["http://d", "ok"] += 3
    metrics.in_flight = 4
    metrics.prefill_s.observe(0.05)
    metrics.prefill_s.observe(0.3)
    metrics.prefill_s.observe(1000.0)
    text = metrics.text([("decode", 'http://d"\\', False, 7)], {"decode": 5})
    lines = text.splitlines()
    assert 'infinistore_router_requests_total{outcome="ok"} 2' in lines
    prefill = 'infinistore_router_prefill_requests_total{upstream="http://p",outcome="failed"} 1'
    assert prefill in lines
    assert 'infinistore_router_decode_requests_total{upstream="http://d",outcome="ok"} 3' in lines
    assert "infinistore_router_in_flight 4" in lines
    assert 'infinistore_router_prefix_choices_total{role="decode"} 5' in lines
    assert 'infinistore_router_upstream_up{role="decode",upstream="http://d\\"\\\\"} 0' in lines
    assert 'infinistore_router_prefill_seconds_bucket{le="0.05"} 1' in lines
    assert 'infinistore_router_prefill_seconds_bucket{le="0.5"} 2' in lines
    assert 'infinistore_router_prefill_seconds_bucket{le="120.0"} 2' in lines
    assert 'infinistore_router_prefill_seconds_bucket{le="+Inf"} 3' in lines
    assert "infinistore_router_prefill_seconds_sum 1000.350000" in lines
    assert text.endswith("\n")


def test_every_family_is_typed_once():
    lines = RouterMetrics().text([], {}).splitlines()
    typed = [line.split()[2] for line in lines if line.startswith("# TYPE")]
    assert len(typed) == len(set(typed)) == 9
