"""Each example runs, against a real server, and says what it promises."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from server_process import ServerProcess

EXAMPLES = Path(__file__).parents[1] / "examples"


def run(*argv: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        argv,
        capture_output=True,
        text=True,
        timeout=50,
        env={**os.environ, **environment},
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("minimal.py", ["8 of 9 blocks found over ", "equal\n", "a miss, as expected: "]),
        ("asyncio_client.py", ["4 of 4 tasks read what they wrote"]),
    ],
)
def test_an_example_runs_and_leaves_nothing_behind(server: ServerProcess, name, said):
    done = run(sys.executable, str(EXAMPLES / name), server.url)
    assert done.returncode == 0, done.stderr
    for text in said:
        assert text in done.stdout
    # Twice: it must not depend on what its first run left.
    assert run(sys.executable, str(EXAMPLES / name), server.url).stdout == done.stdout


def test_an_example_without_a_server_says_so():
    done = run(sys.executable, str(EXAMPLES / "minimal.py"), "infinistore://127.0.0.1:9")
    assert done.returncode != 0
    assert "127.0.0.1:9" in done.stderr


def test_pd_separation_without_a_model_says_how_it_is_used():
    done = run(str(EXAMPLES / "pd_separation.sh"))
    assert done.returncode == 2
    assert "examples/pd_separation.sh MODEL" in done.stderr
    assert "set -" not in done.stderr


def test_pd_separation_refuses_an_unknown_device():
    done = run(str(EXAMPLES / "pd_separation.sh"), "model", DEVICE="abacus")
    assert done.returncode == 2
    assert "DEVICE is abacus" in done.stderr


def test_pd_separation_names_what_did_not_start_and_leaves_nothing_running(tmp_path):
    logs = tmp_path / "logs"
    fake = tmp_path / "python"
    # A Python whose store never gets ready, and that would be seen if it were left behind.
    fake.write_text(f'#!/bin/sh\necho "$$" > {tmp_path}/pid\necho "no memory for you"\nexit 3\n')
    fake.chmod(0o755)
    done = run(
        str(EXAMPLES / "pd_separation.sh"), "model", DEVICE="cpu", PYTHON=str(fake), LOGS=str(logs)
    )
    assert done.returncode == 1
    assert "store has ended" in done.stderr
    assert "no memory for you" in done.stderr
    assert not Path(f"/proc/{(tmp_path / 'pid').read_text().strip()}").exists()
