"""The shape of the code base, as a test: who may know whom, and how long things may grow."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

# A layer may use itself and those (or the single headers) named after it. ARCHITECTURE.md says why.
CORE_LAYERS: dict[str, set[str]] = {
    "base": set(),
    "memory": {"base"},
    "device": {"base"},
    "wire": {"base", "memory/extent.h"},  # extents travel; whose they are it need not know
    "store": {"base", "memory"},
    "transport": {"base", "memory", "device", "wire"},
    "client": {"base", "memory", "device", "wire", "transport"},
    "server": {"base", "memory", "wire", "transport", "store"},
    "bench": {"base", "device"},
}
BINDINGS_MAY_USE = {"base", "device", "client", "server", "bench", "store"}  # store: its model test
PYTHON_LAYERS: dict[str, set[str]] = {
    "errors": set(),
    "_compat": set(),
    "_native": set(),
    "units": {"errors"},
    "config": {"errors", "units", "_compat"},
    "keys": {"errors"},
    "client": {"errors", "config", "keys", "units", "_compat", "_native"},
    # The original's API: its package had client and server in one.
    "compat": {"errors", "config", "units", "keys", "client", "server"},
    "lib": {"compat", "server"},
    "cluster": {"errors", "config", "keys", "client", "_compat", "_native"},  # splits its packs
    "server": {"errors", "config", "units", "cluster", "_compat", "_native"},
    "connectors": {"__init__", "errors", "config", "units", "keys", "client", "cluster", "_compat"},
    "router": {"errors", "config", "units", "keys", "_compat"},
    "bench": {"__init__", "errors", "units", "cluster", "_native"},  # simulates a cluster
    "cli": {
        "bench",
        "errors",
        "config",
        "units",
        "keys",
        "client",
        "cluster",
        "server",
        "router",
        "_compat",
    },
    # The doors: what `import infinistore` and `python -m infinistore` show.
    "__init__": {"errors", "config", "keys", "client", "cluster", "compat", "lib", "server"},
    "__main__": {"cli"},
}
# Only these layers may import these packages.
FENCED: dict[str, set[str]] = {
    "torch": {"client", "connectors"},
    "vllm": {"connectors"},
    "sglang": {"connectors"},
    "aiohttp": {"server", "router", "cli"},
    "uvloop": {"server", "router", "cli"},
    "click": {"server", "router", "cli"},
    "rich": {"cli"},
    "fastapi": set(),
}
# `import infinistore` must not wait for these, nor need them.
LAZY = {"torch", "vllm"}
BANNED = {
    r"\bnew\s+[A-Z]\w*[\s({]": "std::make_unique",
    r"\bdelete\s+\w+;": "an owner",
    r"\busing namespace\b(?! \w+::literals;)": "names",
    r"\bgil_scoped_release\b": "Unlocked, which survives Python's end",
    r"\bshared_ptr\b": "an owner and borrowers",
    r"\bTODO\b(?!\((?:perf|cleanup|test)\): )": "TODO(perf|cleanup|test): why",
}
BANNED_MODULES = {"utils", "util", "helpers", "common", "misc", "manager"}
FILE_LINES_MAX = 600
FUNCTION_LINES_MAX = 70
FOLDER_FILES_MAX = 24

CORE = sorted([*ROOT.glob("core/**/*.h"), *ROOT.glob("core/**/*.cpp")])
BINDINGS = sorted([*ROOT.glob("bindings/*.h"), *ROOT.glob("bindings/*.cpp")])
PYTHON = sorted(ROOT.glob("src/infinistore/**/*.py"))
SUPPORT = sorted(
    path
    for folder in ("tests", "scripts", "demo", "examples", "benchmarks")
    for pattern in ("**/*.py", "**/*.cpp", "**/*.sh")
    for path in ROOT.glob(f"{folder}/{pattern}")
)


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def core_layer(path: Path) -> str | None:
    parts = path.relative_to(ROOT / "core").parts
    return parts[0] if len(parts) > 1 else None


def python_layer(path: Path) -> str:
    return path.relative_to(ROOT / "src/infinistore").parts[0].removesuffix(".py")


def includes(path: Path) -> list[str]:
    return re.findall(r'^\s*#\s*include\s+[<"]([^>"]+)', path.read_text(), re.M)


def core_faults(layer: str, headers: list[str]) -> list[str]:
    """What is wrong with a layer's including these headers."""
    faults = [f"core/ must not know Python: {h}" for h in headers if _is_python(h)]
    for header in headers:
        if header.startswith("core/") and header.count("/") > 1:
            target = header.split("/")[1]
            allowed = CORE_LAYERS[layer] | {layer}
            if target not in allowed and header.removeprefix("core/") not in allowed:
                faults.append(f"{layer}/ must not include {header}")
        elif header.startswith((".", *(f"{name}/" for name in CORE_LAYERS))):
            faults.append(f"write {header} from the root: core/...")
    return faults


def _is_python(header: str) -> bool:
    return header.startswith(("Python.h", "nanobind", "pybind11"))


def imported(tree: ast.AST) -> list[str]:
    """Every module that a source names in an import, relative ones refused by their dot."""
    names: list[str] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            if node.level:
                names.append("." * node.level + (node.module or ""))
            elif node.module == "infinistore":  # from infinistore import keys
                names += [f"infinistore.{alias.name}" for alias in node.names]
            else:
                names.append(node.module or "")
    return names


def python_faults(layer: str, names: list[str]) -> list[str]:
    """What is wrong with a layer's importing these modules."""
    faults = []
    for name in names:
        top, _, rest = name.partition(".")
        if not top:
            faults.append(f"write {name} in full: infinistore...")
        elif top == "infinistore":
            target = rest.split(".")[0]
            if target == "__version__":  # everybody may say which version this is
                continue
            if target not in PYTHON_LAYERS:  # a name that the package itself shows
                target = "__init__"
            if target not in PYTHON_LAYERS[layer] | {layer}:
                faults.append(f"{layer} must not import {name}")
        elif layer not in FENCED.get(top, {layer}):
            faults.append(f"{layer} must not import {top}")
    return faults


def runtime_imports_at_top(tree: ast.Module) -> list[str]:
    """Modules imported when the file is, so not those under TYPE_CHECKING or in a function."""
    return imported(
        ast.Module([n for n in tree.body if isinstance(n, ast.Import | ast.ImportFrom)], [])
    )


@pytest.mark.parametrize("path", [p for p in CORE if core_layer(p)], ids=named)
def test_core_includes_point_down(path: Path) -> None:
    layer = core_layer(path)
    assert layer in CORE_LAYERS, f"core/{layer} is no layer"
    faults = core_faults(layer, includes(path))
    assert faults == []


@pytest.mark.parametrize("path", BINDINGS, ids=named)
def test_bindings_know_only_the_doors(path: Path) -> None:
    for header in includes(path):
        if header.startswith("core/"):
            names = {header.split("/")[1], header.removeprefix("core/")}
            assert names & BINDINGS_MAY_USE, f"bindings/ must not include {header}"


@pytest.mark.parametrize("path", PYTHON, ids=named)
def test_python_imports_point_down(path: Path) -> None:
    layer = python_layer(path)
    assert layer in PYTHON_LAYERS, f"{layer} is no layer"
    faults = python_faults(layer, imported(ast.parse(path.read_text())))
    assert faults == []


@pytest.mark.parametrize("path", [p for p in PYTHON if python_layer(p) != "connectors"], ids=named)
def test_heavy_packages_are_imported_late(path: Path) -> None:
    top = {name.split(".")[0] for name in runtime_imports_at_top(ast.parse(path.read_text()))}
    assert not top & LAZY


@pytest.mark.parametrize("path", [*CORE, *BINDINGS, *PYTHON, *SUPPORT], ids=named)
def test_file_fits(path: Path) -> None:
    text = path.read_text()
    assert len(text.splitlines()) <= FILE_LINES_MAX
    assert path.stem not in BANNED_MODULES, "name the module for the noun it owns"
    if path != Path(__file__).resolve():
        for pattern, instead in BANNED.items():
            found = re.search(pattern, text)
            assert not found, f"write {instead}, not {found[0]!r}"


@pytest.mark.parametrize("path", [*PYTHON, *(p for p in SUPPORT if p.suffix == ".py")], ids=named)
def test_functions_fit_a_screen(path: Path) -> None:
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert node.end_lineno is not None
            lines = node.end_lineno - node.lineno + 1
            assert lines <= FUNCTION_LINES_MAX, f"{node.name} has {lines} lines"


@pytest.mark.parametrize("path", [p for p in CORE if core_layer(p)], ids=named)
def test_core_file_is_well_formed(path: Path) -> None:
    text = path.read_text()
    if path.suffix == ".h":
        assert text.startswith("#pragma once\n//"), "open with #pragma once, and what the file owns"
        return
    header = path.with_suffix(".h")
    if header.exists():
        assert includes(path)[0] == named(header), "include the own header first"
    listed = (ROOT / "core" / str(core_layer(path)) / "CMakeLists.txt").read_text()
    relative = str(path.relative_to(ROOT / "core" / str(core_layer(path))))
    assert relative in re.split(r"[\s()]+", listed), (
        f"its layer's CMakeLists.txt does not name {relative}"
    )


@pytest.mark.parametrize("path", PYTHON, ids=named)
def test_python_file_says_what_it_owns(path: Path) -> None:
    text = path.read_text()
    assert ast.get_docstring(ast.parse(text)), "open with one sentence"
    assert "from __future__ import annotations" in text or len(text.splitlines()) < 10


def test_folders_stay_small() -> None:
    counts: dict[Path, int] = {}
    for path in [*CORE, *PYTHON]:
        counts[path.parent] = counts.get(path.parent, 0) + 1
    crowded = {named(folder): n for folder, n in counts.items() if n > FOLDER_FILES_MAX}
    assert not crowded


@pytest.mark.parametrize("layers", [CORE_LAYERS, PYTHON_LAYERS], ids=["core", "python"])
def test_layers_have_an_order(layers: dict[str, set[str]]) -> None:
    left = dict(layers)
    while left:
        lowest = [
            n for n, below in left.items() if not {b.split("/")[0] for b in below} & set(left)
        ]
        assert lowest, f"a cycle among {sorted(left)}"
        for name in lowest:
            del left[name]


def test_the_rules_catch_what_they_are_for() -> None:
    assert core_faults("store", ["core/transport/stream.h"])
    assert core_faults("base", ["nanobind/nanobind.h"])
    assert core_faults("store", ["base/result.h"])
    assert not core_faults("store", ["core/memory/pool.h", "vector"])
    assert core_faults("wire", ["core/memory/pool.h"])
    assert not core_faults("wire", ["core/memory/extent.h"])
    tree = ast.parse("import torch\nfrom infinistore.server import daemon\nfrom . import x")
    assert len(python_faults("keys", imported(tree))) == 3
    assert python_faults("client", ["infinistore.cli"])
    assert not python_faults("client", ["infinistore.errors", "numpy"])
    with pytest.raises(KeyError):
        python_faults("nowhere", ["infinistore.errors"])
