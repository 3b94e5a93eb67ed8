"""The documentation's site: every page is in its navigation, and every link leads somewhere.

`make docs` builds it, and knows anchors as well; this is what `make test` can see in no time.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGES = sorted(
    [
        *(ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md")),
        ROOT / "CHANGELOG.md",
        *ROOT.glob("docs/**/*.md"),
        *ROOT.glob("benchmarks/**/*.md"),
    ]
)
CODE = re.compile(r"^```.*?^```|^ {4}.*?$|`[^`\n]*`", re.M | re.S)
LINK = re.compile(r"\]\(([^)\s]+)\)")


def named(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_page_is_in_the_navigation_once() -> None:
    navigation = (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2]
    listed = re.findall(r"^ +- .*: (\S+\.md)$", navigation, re.M)
    assert sorted(listed) == [named(page) for page in PAGES], "give each page a line in mkdocs.yml"


def test_every_decision_is_listed() -> None:
    index = ROOT / "docs/decisions/README.md"
    listed = LINK.findall(index.read_text())
    pages = sorted(page.name for page in index.parent.glob("0*.md"))
    assert listed == pages, f"give each decision a line in {named(index)}"


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_links_of_a_page_lead_to_files(page: Path) -> None:
    links = LINK.findall(CODE.sub("", page.read_text()))
    local = [link.partition("#")[0] or page.name for link in links if "://" not in link]
    broken = [link for link in local if not (page.parent / link).is_file()]
    assert broken == []
