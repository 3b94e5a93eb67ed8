"""What a server will run with, decided from settings and facts."""

from __future__ import annotations

import dataclasses
import resource
from pathlib import Path

import pytest

from infinistore.config import GIB, MIB, ServerConfig
from infinistore.errors import ConfigError, SetupError
from infinistore.server.machine import Limits, Memory
from infinistore.server.startup import (
    allow_open_files,
    check_exposure,
    choose_pool,
    choose_socket,
    choose_workers,
    fencing_is_off,
    plan,
    resolve,
)

MEMORY = Memory(total=32 * GIB, available=20 * GIB, source="this machine", huge_page=0, huge_free=0)
FREE = Limits(file_bytes=None, address_space=None, locked_bytes=None, open_files=None)


def test_a_default_pool_is_a_quarter_of_what_is_free_and_capped() -> None:
    assert choose_pool(ServerConfig(), MEMORY, FREE) == 5 * GIB
    vast = dataclasses.replace(MEMORY, available=1024 * GIB)
    assert choose_pool(ServerConfig(), vast, FREE) == 64 * GIB
    assert choose_pool(ServerConfig(), dataclasses.replace(MEMORY, available=0), FREE) == 8 * MIB
    tight = dataclasses.replace(FREE, file_bytes=GIB)
    assert choose_pool(ServerConfig(), MEMORY, tight) == 512 * MIB


def test_a_pool_that_fits_is_taken_as_asked() -> None:
    assert choose_pool(ServerConfig(pool_bytes=20 * GIB), MEMORY, FREE) == 20 * GIB


@pytest.mark.parametrize(
    ("config", "memory", "limits", "words"),
    [
        (
            {"pool_bytes": 21 * GIB},
            {},
            {},
            ["pool = 21GiB", "this machine", "20GiB", "--pool 5120M"],
        ),
        ({"pool_bytes": 21 * GIB}, {"source": "the container (/x)"}, {}, ["the container (/x)"]),
        ({"pool_bytes": 4096}, {}, {}, ["too small", "8MiB"]),
        ({"pool_bytes": GIB, "huge_pages": "on"}, {}, {}, ["this kernel has none", "auto"]),
        (
            {"pool_bytes": GIB, "huge_pages": "on"},
            {"huge_page": 2 * MIB, "huge_free": 2 * MIB},
            {},
            ["2MiB are free", "vm.nr_hugepages=512"],
        ),
        ({"pool_bytes": 2 * GIB}, {}, {"file_bytes": GIB}, ["RLIMIT_FSIZE = 1GiB", "ulimit -f"]),
        ({"pool_bytes": 2 * GIB}, {}, {"address_space": GIB}, ["RLIMIT_AS = 1GiB", "ulimit -v"]),
    ],
)
def test_a_pool_that_cannot_be_is_refused_with_the_remedy(
    config: dict[str, object],
    memory: dict[str, object],
    limits: dict[str, object],
    words: list[str],
) -> None:
    with pytest.raises(ConfigError) as caught:
        choose_pool(
            ServerConfig(**config),  # type: ignore[arg-type]
            dataclasses.replace(MEMORY, **memory),  # type: ignore[arg-type]
            dataclasses.replace(FREE, **limits),  # type: ignore[arg-type]
        )
    for word in words:
        assert word in str(caught.value)


def test_reserved_huge_pages_count_beside_available_memory() -> None:
    memory = dataclasses.replace(MEMORY, available=GIB, huge_page=2 * MIB, huge_free=16 * GIB)
    assert choose_pool(ServerConfig(pool_bytes=16 * GIB), memory, FREE) == 16 * GIB
    with pytest.raises(ConfigError, match="does not fit"):
        choose_pool(ServerConfig(pool_bytes=16 * GIB, huge_pages="off"), memory, FREE)


def test_a_wide_address_needs_a_token_or_a_word() -> None:
    with pytest.raises(ConfigError, match=r"0\.0\.0\.0.*INFINISTORE_TOKEN.*--insecure"):
        check_exposure(ServerConfig(), "", ("127.0.0.1", "0.0.0.0"))
    check_exposure(ServerConfig(), "token", ("0.0.0.0",))
    check_exposure(ServerConfig(insecure=True), "", ("0.0.0.0",))
    check_exposure(ServerConfig(), "", ("127.0.0.1", "::1"))


def test_hosts_resolve_or_are_named() -> None:
    assert resolve("127.0.0.1", "host") == "127.0.0.1"
    assert resolve("localhost", "host") in ("127.0.0.1", "::1")
    assert resolve("::1", "host") == "::1"
    for host in ("no-such-host.invalid", "a" * 300, "bad..name"):
        with pytest.raises(SetupError, match="admin_host = "):
            resolve(host, "admin_host")


def test_workers_leave_half_of_the_cpus_but_serve_two_streams_at_once() -> None:
    assert [choose_workers(cpus) for cpus in (1, 2, 3, 4, 8, 128)] == [1, 2, 2, 2, 4, 8]


def test_the_socket_is_chosen_given_or_none(tmp_path: Path) -> None:
    assert choose_socket(ServerConfig(unix_socket="none")) is None
    assert choose_socket(ServerConfig(unix_socket="/a/b")) == Path("/a/b")
    chosen = choose_socket(ServerConfig(port=7))
    assert chosen is not None
    assert chosen.name == "7.sock"


def test_a_plan_leaves_nothing_open() -> None:
    made = plan(ServerConfig(token="s3cret", admin_host="localhost"))
    assert made.workers >= 1
    assert made.pool_bytes > 0
    assert made.admin_host in ("127.0.0.1", "::1")
    assert made.token == "s3cret"
    assert "s3cret" not in repr(made)


@pytest.mark.parametrize(
    ("before", "after", "is_short"),
    [
        ((1024, 4096), (2256, 4096), False),
        ((128, 1024), (1024, 1024), True),
        ((4096, 8192), None, False),
        ((resource.RLIM_INFINITY, resource.RLIM_INFINITY), None, False),
        ((1024, resource.RLIM_INFINITY), (2256, resource.RLIM_INFINITY), False),
        ((1024, 1024), (1024, 1024), True),
    ],
)
def test_the_soft_limit_of_open_files_is_raised_for_the_sessions(
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    before: tuple[int, int],
    after: tuple[int, int] | None,
    is_short: bool,
) -> None:
    made: list[tuple[int, int]] = []
    monkeypatch.setattr(resource, "getrlimit", lambda which: before)
    monkeypatch.setattr(resource, "setrlimit", lambda which, limits: made.append(limits))
    allow_open_files(1000)
    assert made == ([] if after is None else [after])
    assert ("ulimit -n is" in caplog.text) == is_short


@pytest.mark.parametrize(
    ("value", "is_off"), [("", False), ("0", False), ("yes", False), ("1", True)]
)
def test_fences_are_left_out_only_when_asked_for_and_loudly(
    value: str, is_off: bool, caplog: pytest.LogCaptureFixture
) -> None:
    assert fencing_is_off({"INFINISTORE_UNSAFE_WITHOUT_FENCING": value}) is is_off
    assert fencing_is_off({}) is False
    warnings = [r.levelname for r in caplog.records if "WILL be damaged" in r.message]
    assert warnings == ["WARNING"] * is_off
