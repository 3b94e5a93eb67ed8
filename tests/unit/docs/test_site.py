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
# Of this repository; NAME and the like stand for what somebody adds.
FOLDERS = "core|bindings|src|tests|scripts|benchmarks|examples|deploy|docs"
SOURCE = re.compile(rf"`((?:{FOLDERS})/[a-z0-9_./-]+)(?=[`:])")
TARGET = re.compile(r"(?:^ {4}|`)make ([a-z][a-z0-9-]+)", re.M)


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


@pytest.mark.parametrize("page", PAGES, ids=named)
def test_files_that_a_page_names_are_there(page: Path) -> None:
    missing = [path for path in SOURCE.findall(page.read_text()) if not is_there(path)]
    assert missing == []


def is_there(path: str) -> bool:
    """A file, a folder, or the beginning of both halves of one (`core/base/log`)."""
    return (ROOT / path).exists() or any(ROOT.glob(f"{path.rstrip('/')}.*"))


def test_commands_of_make_are_there() -> None:
    makefile = (ROOT / "Makefile").read_text()
    lists = dict(re.findall(r"^(PEERS|PROOFS) := (.*)$", makefile, re.M))
    known = set(re.findall(r"^([a-z][a-z0-9-]*):", makefile, re.M))
    known |= {f"peer-{name}" for name in lists["PEERS"].split()}
    known |= {f"proof-{name}" for name in lists["PROOFS"].split()}
    for page in PAGES:
        named_here = {name.removesuffix("-") for name in TARGET.findall(page.read_text())}
        assert named_here - known - {"proof"} == set(), named(page)
