"""Makes the packages beside src/ importable, however pytest was started."""

from __future__ import annotations

import sys
from pathlib import Path

_ROOT = Path(__file__).parents[3]
sys.path[:0] = [str(_ROOT), str(_ROOT / "benchmarks")]
