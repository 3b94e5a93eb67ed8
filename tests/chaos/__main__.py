"""`make chaos`: see docs/chaos.md."""

from __future__ import annotations

import argparse
import json
import secrets
import signal
import sys
from pathlib import Path

from chaos.cluster import run_cluster
from chaos.harness import run


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--fencing", choices=("on", "off"), default="on")
    parser.add_argument("--nodes", type=int, default=0, help="a cluster of so many; 0: one server")
    parser.add_argument("--seed", default="", help="what a run before printed; else a new one")
    parser.add_argument("--json", type=Path, help="a file for the figures")
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # by way of who ends the processes
    seed = arguments.seed or secrets.token_hex(4)
    print(f"seed {seed}", flush=True)

    def say(text: str) -> None:
        print(text, flush=True)

    if arguments.nodes:
        found = run_cluster(arguments.nodes, arguments.minutes, seed, say=say)
    else:
        found = run(arguments.minutes, seed, is_fenced=arguments.fencing == "on", say=say)
    if arguments.json:
        figures = {**found.figures, "failures": found.failures}
        arguments.json.write_text(json.dumps(figures, indent=1) + "\n")
    print("\n".join(found.lines()))
    return 1 if found.failures else 0


if __name__ == "__main__":
    sys.exit(main())
