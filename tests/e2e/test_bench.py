"""`infinistore bench`, small: that it runs, verifies, and reports; not how fast."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

from server_process import ServerProcess

TARGETS = {"shm": 0.9, "tcp": 0.85}


def bench(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "infinistore", "bench", "--working-set=4MiB", *arguments],
        capture_output=True,
        text=True,
        timeout=55,
    )


def test_a_small_run_reports_every_transport_verb_and_size(tmp_path: Path) -> None:
    done = bench(
        "--rounds=2",
        "--block=4KiB",
        "--block=64KiB",
        f"--json={tmp_path / 'found.json'}",
        f"--markdown={tmp_path / 'found.md'}",
    )
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path / "found.json").read_text())
    assert [(r["transport"], r["verb"], r["block_bytes"]) for r in found["rows"]] == [
        (transport, verb, size)
        for transport in ("shm", "tcp")
        for verb in ("write", "read")
        for size in (4096, 65536)
    ]
    for row in found["rows"]:
        assert row["rate_gb_s"]["low"] > 0
        assert row["limit_gb_s"]["low"] > 0
        assert row["ratio"]["median"] > 0
        assert row["cpu_server_s_gb"] is not None
        assert row["target"] == (0.6 if row["block_bytes"] == 4096 else TARGETS[row["transport"]])
    # 5 contenders, 3 rounds with the warm-up, 1,024 and 64 blocks
    assert found["settings"]["blocks verified"] == str(5 * 3 * (1024 + 64))
    assert "stream copy" in (tmp_path / "found.md").read_text() + done.stdout
    assert "2 sockets" in done.stdout


def test_a_run_against_a_given_server_leaves_no_key_in_it(server: ServerProcess) -> None:
    done = bench("--rounds=1", "--block=64KiB", "--transport=tcp", f"--url={server.url}")
    assert done.returncode == 0, done.stderr
    assert "shm" not in done.stdout
    assert server.stats()["keys"] == 0


def test_check_says_each_target_and_fails_if_one_is_short(tmp_path: Path) -> None:
    record = tmp_path / "check.json"
    done = bench("--rounds=1", "--block=64KiB", "--check", "--only=limits", f"--json={record}")
    assert done.returncode in (0, 1), done.stderr
    shown = [line for line in done.stdout.splitlines() if line.endswith(("  ok", "  short"))]
    assert [line.split("  ")[1] for line in shown] == [
        f"{transport} {verb} 64KiB" for transport in ("shm", "tcp") for verb in ("write", "read")
    ]
    assert done.returncode == (1 if any(line.endswith("short") for line in shown) else 0)
    lines = json.loads(record.read_text())["checks"][0]["lines"]
    assert [line["target"] for line in lines] == [">= 0.90"] * 2 + [">= 0.85"] * 2
    assert [line["verdict"] for line in lines] == [line.split()[-1] for line in shown]


def test_a_peer_that_is_not_installed_is_short_and_says_how_to_mend_it(tmp_path: Path) -> None:
    done = bench(
        "--rounds=1", "--block=64KiB", "--transport=tcp",
        "--check", "--only=peers", f"--peers={tmp_path}",
    )  # fmt: skip
    assert done.returncode == 1
    for name, package in (("Redis TCP, mget", "redis"), ("Mooncake TCP", "mooncake"),
                          ("NIXL TCP", "nixl")):  # fmt: skip
        line = next(line for line in done.stdout.splitlines() if f"beside {name}" in line)
        assert f"make peer-{package}" in line
        assert line.endswith("short")


def test_an_unknown_check_is_refused_with_the_list_of_them() -> None:
    done = bench("--check", "--only=speed")
    assert done.returncode == 2
    assert "limits: shares of the machine's limits" in done.stderr


def test_an_unknown_server_is_a_clear_error() -> None:
    done = bench("--url=infinistore://127.0.0.1:1")
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
