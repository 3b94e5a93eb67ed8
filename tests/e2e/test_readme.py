"""What the README shows, run as it stands."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from server_process import ServerProcess

README = (Path(__file__).parents[2] / "README.md").read_text()


def test_the_example_does_what_it_says(server: ServerProcess) -> None:
    example = re.search(r"```python\n(.*?)```", README, re.S)
    assert example
    code = example[1].replace("infinistore://127.0.0.1:22345", server.url)
    assert server.url in code
    # Its own lines, then what they claim.
    code += "assert (target[: 32 * 1024] == cache[: 32 * 1024]).all()\n"
    code += "assert not target[32 * 1024 :].any()\n"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=30, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "2\n"
