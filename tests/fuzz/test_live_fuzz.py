"""A short attack on a live server, so that the long one (`make fuzz`) does not rot."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ATTACK = Path(__file__).with_name("live.py")
FRAMES = 30_000


@pytest.mark.timeout(180)
def test_a_live_server_survives_frames_in_and_out_of_order(tmp_path: Path) -> None:
    command = [sys.executable, ATTACK, f"--frames={FRAMES}", "--seed=1", f"--out={tmp_path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert f"{FRAMES} frames" in done.stdout
