"""examples/pd_separation.sh for real: answers come through prefill, store and decode; all ends."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
import urllib.request
import uuid
from pathlib import Path
from typing import Any

import pytest

pytestmark = [pytest.mark.vllm, pytest.mark.timeout(500)]

SCRIPT = Path(__file__).parents[2] / "examples" / "pd_separation.sh"
READY = re.compile(r"ready: (\S+)/v1 \(router\), (\S+) \(store\)")


def marked(mark: str) -> list[int]:
    """The living processes that have `mark` in their environment."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (folder / "environ").read_bytes():
                found.append(int(folder.name))
        except OSError:  # gone, or a kernel thread
            continue
    return found


def ready(script: subprocess.Popen[str], log: Path) -> tuple[str, str]:
    """The URLs of router and store statistics, once all is there."""
    while (found := READY.search(log.read_text())) is None:
        assert script.poll() is None, log.read_text()
        time.sleep(0.5)
    return found.group(1), found.group(2)


def get(url: str, body: dict[str, Any] | None = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(url, data, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=120) as response:
        return json.load(response)


@pytest.fixture
def mark():
    """Put into the environment; whoever still has it at the end is killed."""
    text = f"INFINISTORE_TEST_MARK_{uuid.uuid4().hex}"
    yield text
    for pid in marked(text):
        os.kill(pid, signal.SIGKILL)


def test_a_model_is_served_by_two_vllms_and_ctrl_c_ends_all(model, tmp_path, mark):
    path = str(model("tiny-llama"))
    environment = {
        **os.environ,
        **{mark: "1", "DEVICE": "cpu", "POOL": "256MiB", "PORT": "0", "PYTHON": sys.executable},
        "LOGS": str(tmp_path / "logs"),
        "HF_HUB_OFFLINE": "1",
    }
    log = tmp_path / "script.log"
    with log.open("w") as out:
        script = subprocess.Popen(
            [str(SCRIPT), path, "--max-model-len", "1024", "--max-num-seqs", "4"],
            stdout=out,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            start_new_session=True,
        )
    front, stats = ready(script, log)
    prompt = [100 + index % 700 for index in range(130)]
    body = {"model": path, "prompt": prompt, "max_tokens": 4, "temperature": 0}
    # The connector reads the weights for their digest while vLLM answers already.
    deadline_s = time.monotonic() + 60
    while not get(stats)["sent_bytes"]:
        assert time.monotonic() < deadline_s, "decode loaded nothing from the store"
        assert get(f"{front}/v1/completions", body)["usage"]["completion_tokens"] == 4
        prompt[0] += 1  # another prompt, which no cache of decode's own can know
    assert get(f"{front}/health")["status"] == "ok"

    script.send_signal(signal.SIGINT)
    assert script.wait(60) == 130
    assert marked(mark) == []
