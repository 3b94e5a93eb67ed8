"""docs/api.md: what the package shows, with a docstring for each name."""

from __future__ import annotations

import inspect
import runpy
from pathlib import Path

import pytest

import infinistore

ROOT = Path(__file__).parents[3]
SCRIPT = runpy.run_path(str(ROOT / "scripts/api_page.py"))
DOCUMENTED = SCRIPT["documented"]()


def test_the_page_says_what_the_docstrings_say() -> None:
    made = SCRIPT["page"]()
    assert (ROOT / "docs/api.md").read_text() == made, "scripts/api_page.py > docs/api.md"


@pytest.mark.parametrize("name", sorted(DOCUMENTED))
def test_every_public_name_says_what_it_is(name: str) -> None:
    thing = DOCUMENTED[name]
    if isinstance(thing, str):
        return  # a constant of the original's: docs/compat.md
    text_of = SCRIPT["text_of"]
    assert text_of(thing), f"infinistore.{name} needs a docstring"
    if inspect.isclass(thing):
        silent = [member for member, what in SCRIPT["members"](thing).items() if not text_of(what)]
        assert silent == [], f"members of infinistore.{name} need docstrings"


def test_every_public_name_is_on_the_page() -> None:
    page = (ROOT / "docs/api.md").read_text()
    missing = [
        name for name in DOCUMENTED if f"\n### {name}\n" not in page and f"| `{name}` |" not in page
    ]
    assert missing == []
    assert set(DOCUMENTED) == {name for name in infinistore.__all__ if name != "__version__"}


def test_a_name_without_a_docstring_is_seen() -> None:
    class Silent(infinistore.InfiniStoreError):
        def said(self) -> None:
            """This one has."""

        def unsaid(self) -> None: ...

    Silent.__module__ = "infinistore.silent"
    assert not SCRIPT["text_of"](Silent)  # its base's does not count
    members = SCRIPT["members"](Silent)
    assert [name for name, what in members.items() if not SCRIPT["text_of"](what)] == ["unsaid"]
