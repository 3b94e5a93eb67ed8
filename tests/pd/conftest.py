"""Fixtures of the tests of prefill and decode apart, which `make test-clients` runs."""

from __future__ import annotations

import os
import random
import subprocess
import sys
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path

import pytest
from vllm_engine import EngineProcess

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(Path(__file__).parent))

from pair import OUTPUT, Reference  # noqa: E402, it lies here

# Some twenty minutes of vLLM: nothing for `make test`.
_CLIENT = os.environ.get("INFINISTORE_TEST_CLIENT", "")
_RELEASE = _CLIENT.removeprefix("vllm-") if _CLIENT.startswith("vllm-") else ""
collect_ignore_glob = [] if _CLIENT == "pd" or _RELEASE else ["test_*.py"]

os.environ["PYTHONPATH"] = os.pathsep.join(
    [str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
).rstrip(os.pathsep)  # the engines' workers import `witness`


@pytest.fixture(scope="session", autouse=True)
def release() -> None:
    """Fails unless the engines' vLLM is of the release that is asked for."""
    found = find_spec("vllm")
    assert found is not None
    assert found.origin is not None
    folder = Path(found.origin).parent
    assert f"'{_RELEASE}" in (folder / "_version.py").read_text(), f"{folder}: not {_CLIENT}"


@pytest.fixture(scope="session")
def model() -> Callable[[str], Path]:
    """The directory of a small model by its name, made if it is not there yet."""

    def find(name: str) -> Path:
        script = ROOT / "scripts" / "make_models.py"
        subprocess.run([sys.executable, str(script), name], check=True)
        return ROOT / "build" / "models" / name

    return find


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Token ids of lengths around whole blocks of 16 and 32, two with a common beginning."""
    source = random.Random(8)
    lengths = (31, 33, 64, 97, 200, 417)
    made = [[source.randrange(4, 1000) for _ in range(length)] for length in lengths]
    made.append(made[-1][:128] + made[3])
    return made


@pytest.fixture(scope="session")
def reference(model: Callable[[str], Path], prompts: list[list[int]]) -> Reference:
    """What plain vLLM says with its prefix cache warm, by model, type and ranks."""
    said: dict[tuple[str, str], list[list[int]]] = {}

    def find(name: str, **arguments: object) -> list[list[int]]:
        case = name, repr(sorted(arguments.items()))
        if case not in said:
            with EngineProcess(model(name), **arguments) as engine:  # type: ignore[arg-type]
                engine.generate(prompts, 1)
                said[case] = [output["tokens"] for output in engine.generate(prompts, OUTPUT)]
            assert len({tuple(tokens) for tokens in said[case]}) == len(prompts)
        return said[case]

    return find
