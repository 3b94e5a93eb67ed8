"""The extra config: what it may say, and how it is told off."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from infinistore.connectors.vllm.identity import check_failure_policy
from infinistore.connectors.vllm.link import connect
from infinistore.connectors.vllm.settings import ConnectorSettings
from infinistore.errors import ConfigError


def test_nothing_said_is_the_defaults() -> None:
    settings = ConnectorSettings.of({})
    assert settings.url == "infinistore://127.0.0.1:22345"
    assert settings.load_mode == "async"


def test_numbers_may_be_whole() -> None:
    assert ConnectorSettings.of({"save_timeout_s": 2}).save_timeout_s == 2.0


@pytest.mark.parametrize(
    ("extra", "said"),
    [
        ({"load_mod": "async"}, "unknown key 'load_mod'; did you mean 'load_mode'"),
        ({"zzz": 1}, "unknown key 'zzz'; known: url"),
        ({"load_mode": "sometimes"}, "choose from"),
        ({"transport": "rdma"}, "choose from"),
        ({"url": 7}, "not a str"),
        ({"lookup_timeout_s": "1"}, "not a float"),
        ({"lookup_timeout_s": True}, "not a float"),
        ({"lookup_timeout_s": 0}, "0 to 600 seconds"),
        ({"tenant": ""}, "tenant is empty"),
    ],
)
def test_what_cannot_be_meant_is_refused(extra: dict[str, object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        ConnectorSettings.of(extra)


def test_a_policy_that_fails_requests_needs_a_second_word() -> None:
    config = SimpleNamespace(kv_transfer_config=SimpleNamespace(kv_load_failure_policy="fail"))
    with pytest.raises(ConfigError, match='"kv_load_failure_policy": "recompute"'):
        check_failure_policy(config, ConnectorSettings())
    check_failure_policy(config, ConnectorSettings(allow_load_failure_fail=True))
    config.kv_transfer_config.kv_load_failure_policy = "recompute"
    check_failure_policy(config, ConnectorSettings())


def test_replicas_are_for_connect(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, object]] = []
    monkeypatch.setattr("infinistore.connect", lambda url, **how: asked.append(how))
    for extra in ({}, {"replicas": 2}):
        connect(ConnectorSettings.of(extra), "ns")
    assert ["replicas" in how for how in asked] == [False, True]
    assert asked[1]["replicas"] == 2
    for wrong in (0, 9, True, "2"):
        with pytest.raises(ConfigError, match="replicas"):
            ConnectorSettings.of({"replicas": wrong})
