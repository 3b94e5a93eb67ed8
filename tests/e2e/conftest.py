"""Fixtures for the tests that start vLLM, or a router between servers that stand in for it."""

from __future__ import annotations

import importlib.util
import random
import subprocess
import sys
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest
from router_stage import Stage
from vllm_engine import EngineProcess

ROOT = Path(__file__).parents[2]


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    """Two prefills, two decodes, and a router between that `open` starts."""
    stage = Stage()
    try:
        yield stage
    finally:
        await stage.close()


@pytest.fixture(scope="session")
def model() -> Callable[[str], Path]:
    """The directory of a small model by its name, made if it is not there yet."""
    if importlib.util.find_spec("vllm") is None:
        pytest.skip("vLLM is not installed (make setup)")

    def find(name: str) -> Path:
        path = ROOT / "build" / "models" / name
        if not (path / "config.json").exists():
            subprocess.run(
                [sys.executable, str(ROOT / "scripts" / "make_models.py"), name], check=True
            )
        return path

    return find


@pytest.fixture(scope="session")
def prompts() -> list[list[int]]:
    """Token ids of all lengths around whole blocks of 32, two of them with a common beginning."""
    source = random.Random(7)
    lengths = (31, 32, 33, 64, 65, 200, 320, 577)
    made = [[source.randrange(4, 1000) for _ in range(length)] for length in lengths]
    made.append(made[-1][:128] + made[5])
    return made


@pytest.fixture(scope="session")
def plain(
    model: Callable[[str], Path], prompts: list[list[int]]
) -> Callable[[str], list[list[int]]]:
    """What plain vLLM, without a connector, says to each prompt; 250 tokens, by model."""
    said: dict[str, list[list[int]]] = {}

    def find(name: str) -> list[list[int]]:
        if name not in said:
            with EngineProcess(model(name)) as engine:
                said[name] = [output["tokens"] for output in engine.generate(prompts, 250)]
        return said[name]

    return find
