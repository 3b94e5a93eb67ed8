"""Runs clang-tidy over core/, skipping files whose last run was clean.

A file's result holds as long as neither it, nor any header of ours, nor the settings change.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).parents[1]
CACHE = ROOT / ".cache" / "clang-tidy"
# gcc's own flags that clang does not know must not count as findings.
EXTRA = ["--extra-arg=-Wthread-safety", "--extra-arg=-Wno-unknown-warning-option"]


def sources(build: Path) -> list[Path]:
    """The compiled files of ours, tests left out: doctest's macros trip the complexity checks."""
    commands = json.loads((build / "compile_commands.json").read_text())
    files = {Path(command["file"]) for command in commands}
    ours = [f for f in files if f.is_relative_to(ROOT / "core")]
    endings = ("_test.cpp", "_testing.cpp", "test_main.cpp")
    return sorted(f for f in ours if not f.name.endswith(endings))


def shared_digest() -> str:
    """Of everything that all files depend on: headers, settings, the tool."""
    digest = hashlib.sha256()
    version = subprocess.run(["clang-tidy", "--version"], capture_output=True, check=True).stdout
    digest.update(version)
    for path in [ROOT / ".clang-tidy", *sorted(ROOT.glob("core/**/*.h"))]:
        digest.update(path.read_bytes())
    return digest.hexdigest()


def check(path: Path, build: Path, shared: str) -> str:
    """The findings in one file; empty if it is clean."""
    key = hashlib.sha256(shared.encode() + str(path).encode() + path.read_bytes()).hexdigest()
    stamp = CACHE / key
    if stamp.exists():
        return ""
    command = ["clang-tidy", "--quiet", "-p", str(build), *EXTRA, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        stamp.touch()
        return ""
    return done.stdout or done.stderr


def main() -> int:
    """Exit status 1 if anything was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--build", type=Path, required=True, help="folder with compile commands")
    parser.add_argument("--jobs", type=int, default=2)
    args = parser.parse_args()
    CACHE.mkdir(parents=True, exist_ok=True)
    shared = shared_digest()
    files = sources(args.build)
    bad = 0
    with ThreadPoolExecutor(args.jobs) as pool:
        for findings in pool.map(lambda f: check(f, args.build, shared), files):
            if findings:
                print(findings, flush=True)
                bad += 1
    print(f"clang-tidy: {len(files)} files, {bad} with findings")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
