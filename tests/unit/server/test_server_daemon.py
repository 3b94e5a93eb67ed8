"""A server's life over a made-up native part: what is started is stopped, however it ends."""

from __future__ import annotations

import asyncio
import dataclasses
import os
import signal
import socket
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

from fake_native import FakeNative
from infinistore.config import ServerConfig
from infinistore.errors import SetupError
from infinistore.server.daemon import ready_line, serve
from infinistore.server.native import ServerOptions, make_server, options_for
from infinistore.server.startup import Plan
from server_process import READY


def make_plan(tmp_path: Path, **settings: object) -> Plan:
    given = {"port": 0, "admin_port": 0, "unix_socket": str(tmp_path / "s"), **settings}
    config = ServerConfig(**given)  # type: ignore[arg-type]
    return Plan(
        config=config,
        host="127.0.0.1",
        admin_host="127.0.0.1",
        unix_socket=tmp_path / "s",
        pool_bytes=4096,
        workers=2,
        token=config.token,
    )


def left_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


class Life:
    """`serve` running as a task on the test's loop, over a fake that is made by it."""

    def __init__(self, plan: Plan, native: FakeNative | None = None) -> None:
        self.native = native or FakeNative()
        self.task = asyncio.create_task(serve(plan, "1.2.3", self._make))

    def _make(self, options: ServerOptions) -> FakeNative:
        self.native.options = options
        return self.native

    async def ready(self, capsys: pytest.CaptureFixture[str]) -> dict[str, str]:
        text = ""
        async with asyncio.timeout(10):
            while "\n" not in text:
                assert not self.task.done(), self.task.exception()
                await asyncio.sleep(0.01)
                text += capsys.readouterr().out
        match = READY.fullmatch(text.strip())
        assert match, text
        return match.groupdict()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_stop_signal_drains_and_leaves_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], number: signal.Signals
) -> None:
    life = Life(make_plan(tmp_path, drain_timeout_s=0.5))
    ready = await life.ready(capsys)
    assert (ready["data"], ready["pool"]) == ("127.0.0.1:4321", "4096")
    assert (tmp_path / "s.lock").exists()
    url = f"http://{ready['admin']}/health"
    body = await asyncio.to_thread(lambda: urllib.request.urlopen(url, timeout=5).read())
    assert b'"incarnation": 77' in body
    os.kill(os.getpid(), number)
    await asyncio.wait_for(life.task, 10)
    assert life.native.calls == [("start", None), ("stop", 0.5)]
    assert left_in(tmp_path) == []
    with pytest.raises(urllib.error.URLError):
        await asyncio.to_thread(urllib.request.urlopen, url, timeout=5)


async def test_a_native_start_that_fails_is_one_error_and_nothing_is_left(tmp_path: Path) -> None:
    native = FakeNative()
    native.start_error = RuntimeError("port 4321 is taken")
    with pytest.raises(SetupError, match="port 4321 is taken"):
        await Life(make_plan(tmp_path), native).task
    assert left_in(tmp_path) == []


async def test_a_taken_admin_port_stops_the_native_part_again(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        life = Life(make_plan(tmp_path, admin_port=taken.getsockname()[1]))
        with pytest.raises(SetupError, match="--admin-port"):
            await life.task
    assert life.native.calls == [("start", None), ("stop", 0.0)]
    assert left_in(tmp_path) == []


def test_the_ready_line_brackets_ipv6(tmp_path: Path) -> None:
    plan = make_plan(tmp_path)
    line = ready_line(plan, 1, 2)
    assert (
        line == f"infinistore ready data=127.0.0.1:1 admin=127.0.0.1:2 unix={tmp_path}/s pool=4096"
    )
    wide = dataclasses.replace(plan, host="::1", unix_socket=None)
    assert "data=[::1]:1" in ready_line(wide, 1, 2)
    assert "unix=none" in ready_line(wide, 1, 2)


def test_a_missing_native_part_is_an_error_with_the_remedy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "infinistore._native", None)
    with pytest.raises(SetupError, match="make build"):
        make_server(options_for(make_plan(tmp_path), "1.2.3"))


def test_options_hide_the_token(tmp_path: Path) -> None:
    options = options_for(make_plan(tmp_path, token="s3cret"), "1.2.3")
    assert options.token == "s3cret"
    assert "s3cret" not in repr(options)
