"""What `make demo` runs: the package `demo`, from the repository's root."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
runpy.run_module("demo", run_name="__main__")
