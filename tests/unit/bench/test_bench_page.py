"""Facts of the benchmark that stand in two places, and the page that its figures are put into."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

from infinistore.bench.peers.table import PEERS

ROOT = Path(__file__).parents[3]


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, ROOT / "benchmarks" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    # A frozen dataclass looks its module up while it is made.
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, name, module)
        spec.loader.exec_module(module)
    return module


def test_each_peer_has_a_recipe_and_a_make_target() -> None:
    recipes = set(load("peers").RECIPES)
    assert {peer.package for peer in PEERS} == recipes
    found = re.search(r"^PEERS := (.*)$", (ROOT / "Makefile").read_text(), re.M)
    assert found is not None
    assert set(found[1].split()) == recipes


def test_the_versions_that_the_page_names_are_those_installed() -> None:
    page = (ROOT / "docs" / "benchmarks.md").read_text()
    for recipe in load("peers").RECIPES.values():
        for package in recipe.python:
            name, _, version = package.partition("==")
            if name != "msgpack":  # what Mooncake imports, no peer
                assert re.search(r"\d+\.\d+", version)[0] in page, package  # type: ignore[index]


def test_a_part_of_the_page_is_replaced_and_nothing_else() -> None:
    page = load("page")
    before = "head <!-- begin: make bench -->\nold\n<!-- end: make bench --> tail"
    after = page.put(before, "make bench", "new\n")
    assert (after.startswith("head "), after.endswith(" tail")) == (True, True)
    assert "new" in after
    assert "old" not in after
    assert page.put(after, "make bench", "new\n") == after
    with pytest.raises(ValueError, match="no <!-- begin: make x -->"):
        page.put(before, "make x", "new")


def test_the_page_has_a_part_for_everything_that_is_put_there() -> None:
    page = load("page")
    text = page.PAGE.read_text()
    for name in page.TABLES:
        text = page.put(text, name, "figures")
    assert text.count("\nfigures\n") == len(page.TABLES)


def test_of_a_sweep_the_page_shows_the_charts_and_the_table_beside_peers() -> None:
    text = "machine\n\n### Beside x\n\n| a |\n\n### By y\n\n| b |\n"
    shown = load("page").of_sweep(text)
    assert "![" in shown
    assert "machine" in shown
    assert "| a |" in shown
    assert "| b |" not in shown
