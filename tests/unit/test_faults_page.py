"""docs/faults.md: every known fault once, every named test there; what only sources show."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

import pytest

from figures import RecordFigure

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/faults.md"
DESIGN = ROOT.parent / "shared/design/faults.md"

# Of reports from the field; numbers have gaps.
FIELD = [*range(1, 9), 10, 11, 12, 14, 15, 16]
FIELD += [*range(17, 22), *range(23, 28), 29, 30]
FIELD += [32, *range(34, 48), 49]
FIELD += [*range(50, 56), 57, 58, 59, 62]
FIELD += [*range(63, 68), 69, 71, 72]
FIELD += [*range(73, 79)]
MISUSE_COUNT = 12
ORIGINAL_COUNT = 34

ROW = re.compile(r"^\| (?P<first>[^|]+) \| (?:(?P<what>[^|]+) \| )?(?P<here>[^|]+) \|$", re.M)
NUMBER = re.compile(r"[IO]?\d+")
NAMED = re.compile(r"`([\w/.]+\.(?:py|cpp))::([^`]+)`")


def rows() -> list[re.Match[str]]:
    """The tables' rows, their heads left away."""
    found = [row for row in ROW.finditer(PAGE.read_text()) if "---" not in row[0]]
    return [row for row in found if row["first"] not in ("number", "behaviour")]


@cache
def names_in(path: str) -> set[str]:
    text = (ROOT / path).read_text()
    if path.endswith(".cpp"):
        joined = re.sub(r'"\s*\n\s*"', "", text)  # a name that is written over two lines
        return set(re.findall(r'TEST_CASE\(\s*"([^"]+)"', joined))
    functions = (ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.walk(ast.parse(text)) if isinstance(node, functions)}


def test_every_number_stands_there_once() -> None:
    numbers = [row["first"] for row in rows() if NUMBER.fullmatch(row["first"])]
    wanted = [str(n) for n in FIELD]
    wanted += [f"I{n}" for n in range(1, MISUSE_COUNT + 1)]
    wanted += [f"O{n}" for n in range(1, ORIGINAL_COUNT + 1)]
    assert numbers == wanted


def test_every_fault_names_tests_that_exist_or_says_why_not(record_figure: RecordFigure) -> None:
    places = [row["here"].strip() for row in rows()]
    excused = [
        here
        for here in places
        if here.startswith(("Not built: ", "Cannot happen here: ")) and here.endswith(".")
    ]
    tested = [here for here in places if here.startswith("`")]
    named = set(NAMED.findall(PAGE.read_text()))
    there = {(path, name) for path, name in named if name in names_in(path)}
    record_figure(
        "faults of docs/faults.md",
        f"{len(places)}: {len(tested)} name tests, {len(excused)} say why not; "
        f"{len(there)} of {len(named)} tests exist",
        "all",
        ok=len(tested) + len(excused) == len(places) and there == named,
    )


@pytest.mark.parametrize("path", sorted({path for path, _ in NAMED.findall(PAGE.read_text())}))
def test_every_named_test_exists(path: str) -> None:
    named = {name for file, name in NAMED.findall(PAGE.read_text()) if file == path}
    assert named <= names_in(path)
    # And each name between backticks is one of these, so that a slip does not hide it.
    quoted = [text for text in re.findall(r"`([^`]+)`", PAGE.read_text()) if "::" in text]
    assert len(quoted) == len(NAMED.findall(PAGE.read_text())) + 1  # `file::name`, which explains


def test_the_list_is_that_of_the_design() -> None:
    if not DESIGN.exists():
        pytest.skip("the list that it was made from is not here")
    field, _, original = DESIGN.read_text().partition("## Faults of the original")
    numbers = [int(n) for n in re.findall(r"^(\d+)\. \*\*", field, re.M)]
    assert numbers == FIELD
    assert max(map(int, re.findall(r"(?:^|[.;)] )(\d+)\. [A-Z]", original, re.M))) == ORIGINAL_COUNT


def test_nothing_runs_what_a_peer_sends() -> None:
    """No pickle and its like, no eval, no shell, no queue that brings them."""
    modules = {"pickle", "marshal", "shelve", "dill", "cloudpickle", "zmq", "yaml"}
    calls = {"eval", "exec", "compile", "__import__"}
    for path in ROOT.glob("src/**/*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                assert not {alias.name.split(".")[0] for alias in node.names} & modules, path
            elif isinstance(node, ast.ImportFrom):
                assert (node.module or "").split(".")[0] not in modules, path
            elif isinstance(node, ast.Call):
                name = node.func.id if isinstance(node.func, ast.Name) else ""
                assert name not in calls, f"{path}:{node.lineno}"
                assert not any(word.arg == "shell" for word in node.keywords), path
    needed = re.search(
        r"^dependencies = \[(.*?)^\]", (ROOT / "pyproject.toml").read_text(), re.M | re.S
    )
    assert needed
    assert not modules & set(re.findall(r"[a-z]+", needed[1]))


def test_no_check_is_left_out_of_a_release_build() -> None:
    """KV_CHECK stands in every build; assert() does not, nor what is done within it."""
    for path in [*ROOT.glob("core/**/*.h"), *ROOT.glob("core/**/*.cpp"), *ROOT.glob("bindings/*")]:
        text = path.read_text()
        assert not re.search(r"(?<![_\w])assert\(|<cassert>|<assert\.h>|\bNDEBUG\b", text), path


def test_continuous_integration_runs_the_tests() -> None:
    assert re.search(r"\bmake check test\b", (ROOT / ".ci/run").read_text())
    assert "pytest" in (ROOT / "scripts/test.sh").read_text()
    assert "ctest" in (ROOT / "scripts/test.sh").read_text()
