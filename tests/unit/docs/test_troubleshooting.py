"""docs/troubleshooting.md quotes what the product really says, and names metrics that exist."""

from __future__ import annotations

import ast
import re
from functools import cache
from pathlib import Path

from infinistore.errors import Code
from infinistore.server.prometheus import METRICS, NAMESPACE_METRICS, PREFIX

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/troubleshooting.md").read_text()
ROW = re.compile(r"^\| (?P<seen>.+?) \| (?P<means>.+) \| (?P<todo>.+) \|$", re.M)
SYMPTOMS_MIN = 20
GAP = "..."
WORDS_MIN = 5  # of a sentence
QUOTE = re.compile(r"`([^`]*)`")


def symptoms() -> list[str]:
    """The tables' first columns."""
    seen = [row["seen"] for row in ROW.finditer(PAGE)]
    return [text for text in seen if text != "you see" and not text.startswith("---")]


def messages() -> list[str]:
    """Texts between backticks in first columns, and sentences wherever they stand in a row.

    Other words between backticks are names of settings, calls and commands.
    """
    rows = [(row["seen"], row["means"] + row["todo"]) for row in ROW.finditer(PAGE)]
    found = [quote for seen, _ in rows for quote in QUOTE.findall(seen) if " " in quote]
    beside = [quote for _, rest in rows for quote in QUOTE.findall(rest)]
    return found + [quote for quote in beside if len(quote.split()) >= WORDS_MIN]


@cache
def literals() -> str:
    """Every text of the sources, as it is said: parts that stand side by side are joined."""
    found = [f": {code.name.lower().replace('_', ' ')}" for code in Code]  # a batch's failure
    for path in ROOT.glob("src/infinistore/**/*.py"):
        nodes = ast.walk(ast.parse(path.read_text()))
        constants = (node.value for node in nodes if isinstance(node, ast.Constant))
        found += [value for value in constants if isinstance(value, str)]
    side_by_side = re.compile(r'"\s*\n?\s*"')
    for path in ROOT.glob("core/**/*.cpp"):
        if not path.name.endswith("_test.cpp"):
            joined = side_by_side.sub("", path.read_text())
            found += [
                text.replace('\\"', '"') for text in re.findall(r'"((?:[^"\\\n]|\\.)*)"', joined)
            ]
    return "\0".join(found)


def is_said(message: str) -> bool:
    """Whether each piece between gaps stands in a text, and one at least tells messages apart."""
    pieces = [piece for piece in message.split(GAP) if piece.strip(" ():;,.")]
    return any(len(piece) > 8 for piece in pieces) and all(p in literals() for p in pieces)


def test_every_quoted_message_is_one_of_ours() -> None:
    strange = [message for message in messages() if not is_said(message)]
    assert strange == []


def test_there_are_enough_symptoms_and_each_once() -> None:
    assert len(symptoms()) >= SYMPTOMS_MIN
    assert len(messages()) >= SYMPTOMS_MIN
    assert len(set(symptoms())) == len(symptoms())


def test_every_metric_on_the_page_exists() -> None:
    known = {PREFIX + metric.name for metric in [*METRICS, *NAMESPACE_METRICS]}
    named = set(re.findall(rf"`({PREFIX}\w+)`", PAGE))
    assert named
    assert named <= known


def test_a_message_that_nobody_says_is_seen() -> None:
    assert is_said("no server answers at ... (...); is infinistore running there?")
    assert not is_said("no server answers at ...; is it there?")
    assert not is_said("...: ...")
