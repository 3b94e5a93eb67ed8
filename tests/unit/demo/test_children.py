"""The demo's processes end with it, whatever ends it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from demo.children import Child, ChildError, Children

from waiting import until

ROOT = Path(__file__).parents[3]
# Starts a grandchild, names both, and does not mind SIGTERM: the worst to be ended.
STUBBORN = """
import os, signal, subprocess, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
grandchild = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"])
print("pids", os.getpid(), grandchild.pid, flush=True)
time.sleep(300)
"""
# A run like the demo's, that waits for its end with one child.
RUN = """
import signal, sys, time
from pathlib import Path
from demo.children import Children
# Whoever runs the tests in the background may have Ctrl-C ignored, which is inherited.
signal.signal(signal.SIGINT, signal.default_int_handler)
with Children() as children:
    child = children.start("sleeper", ["sleep", "300"], Path(sys.argv[1]), {})
    print(child.pid, flush=True)
    time.sleep(300)
"""


def is_alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except (FileNotFoundError, ProcessLookupError):
        return False
    return state not in "ZX"


def test_stop_ends_grandchildren_and_the_deaf(tmp_path, monkeypatch):
    monkeypatch.setattr("demo.children._TERM_S", 0.3)
    child = Child("deaf", [sys.executable, "-c", STUBBORN], tmp_path / "log", dict(os.environ))
    pids = [int(word) for word in child.line("pids").split()[1:]]
    assert all(map(is_alive, pids))
    child.stop()
    for pid in pids:
        until(lambda pid=pid: not is_alive(pid), message=f"{pid} still runs")


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_a_run_leaves_nothing_behind(tmp_path, number):
    run = subprocess.Popen(
        [sys.executable, "-c", RUN, str(tmp_path / "log")],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    with run:
        assert run.stdout is not None
        pid = int(run.stdout.readline())
        assert is_alive(pid)
        run.send_signal(number)
        run.wait(20)
    until(lambda: not is_alive(pid))


def test_who_ends_early_is_named_with_its_last_words(tmp_path):
    with Children() as children:
        child = children.start(
            "the store", ["sh", "-c", "echo no pool; exit 4"], tmp_path / "log", dict(os.environ)
        )
        with pytest.raises(ChildError, match=r"(?s)the store ended with status 4.*no pool"):
            child.line("ready")


def test_who_never_is_ready_is_named(tmp_path):
    with Children() as children:
        child = children.start("slow", ["sleep", "60"], tmp_path / "log", dict(os.environ))
        with pytest.raises(ChildError, match="slow was not ready after 0 s"):
            child.wait(lambda: False, 0.3)
    assert not is_alive(child.pid)
