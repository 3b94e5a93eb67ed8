"""Prints docs/api.md, every public name of the package, from signatures and docstrings.

python scripts/api_page.py > docs/api.md
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from collections.abc import Iterator
from typing import Any

import infinistore
from infinistore import Code, InfiniStoreError
from infinistore.errors import CODE_TO_ERROR

HEAD = """\
# Python API

Made by `scripts/api_page.py` from the docstrings of `src/infinistore/`; a test keeps them equal,
and fails for a public name that has none. What stands here is what `import infinistore` shows.

    with infinistore.connect("infinistore://host:22345") as store:
        store.write_cache(cache, [("key", 0)], page_size=4096)
        store.sync()

A `Key` is a text or bytes, 1 to 255 of them; `Pairs` are `(key, offset)`, offsets into the cache.
The settings that `connect()` takes beside its own arguments are the client's of
[settings](settings.md). A missing key is an outcome; of failures each has a [class](#errors).
Words: the [glossary](glossary.md).
"""
CONNECTING = ("connect", "connect_async")
CLIENTS = ("Client", "AsyncClient")
VALUES = ("Batch", "Lookup", "Outcomes", "Code", "Blocks", "Segments")
ORIGINAL = """\
## The original package's names

What each means here: [the original package's API](compat.md).
"""
LINE_CHARS_MAX = 96
# What an object of a class is called in examples, where that is not the class's name.
VARIABLES = {
    "Client": "store",
    "AsyncClient": "store",
    "ClientConfig": "config",
    "ServerConfig": "config",
    "InfinityConnection": "connection",
    "Logger": "Logger",
}


def documented() -> dict[str, Any]:
    """Every public name but `__version__`, and what it is."""
    return {name: getattr(infinistore, name) for name in infinistore.__all__ if name[0] != "_"}


def errors() -> list[type[InfiniStoreError]]:
    """Each class once, those below another behind it."""
    named = set(documented().values())

    def below(error: type[InfiniStoreError]) -> Iterator[type[InfiniStoreError]]:
        yield error
        for lower in sorted(error.__subclasses__(), key=lambda one: one.__name__):
            if lower in named:
                yield from below(lower)

    return list(below(InfiniStoreError))


def members(of: type) -> dict[str, Any]:
    """A class's public methods and properties, its own and those of bases that are ours."""
    found: dict[str, Any] = {}
    for base in of.__mro__:
        if base.__module__.startswith("infinistore"):
            for name, member in vars(base).items():
                if name[0] != "_" and _is_member(member):
                    found.setdefault(name, member)
    return found


def _is_member(member: Any) -> bool:
    return inspect.isfunction(member) or isinstance(member, (property, staticmethod, classmethod))


def text_of(thing: Any, owner: str = "") -> str:
    """Its own docstring, never a base's; "See `other`" becomes a link."""
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    text = inspect.cleandoc(getattr(thing, "__doc__", None) or "")

    def link(see: re.Match[str]) -> str:
        name = see[1]
        return f"See [`{name}`](#{_slug(name if '.' in name or not owner else f'{owner}.{name}')})"

    return re.sub(r"^See `([\w.]+)`", link, text)


def _slug(title: str) -> str:
    return title.lower().replace(".", "")


def call_of(name: str, thing: Any) -> str:
    """How it is called, or what a property is: one line, or one for each parameter."""
    if isinstance(thing, property):
        assert thing.fget is not None
        return f"{name}: {_shown(inspect.signature(thing.fget).return_annotation)}"
    if isinstance(thing, (staticmethod, classmethod)):
        thing = thing.__func__
    signature = inspect.signature(thing)
    given = [p for p in signature.parameters.values() if p.name not in ("self", "cls")]
    result = _shown(signature.return_annotation)
    tail = "" if inspect.isclass(thing) or not result else f" -> {result}"
    prefix = "await " if inspect.iscoroutinefunction(thing) else ""
    parts = _parameters(given)
    line = f"{prefix}{name}({', '.join(parts)}){tail}"
    if len(line) <= LINE_CHARS_MAX:
        return line
    return f"{prefix}{name}(\n" + "".join(f"    {part},\n" for part in parts) + f"){tail}"


def _parameters(given: list[inspect.Parameter]) -> list[str]:
    parts: list[str] = []
    for one in given:
        is_named = one.kind is inspect.Parameter.KEYWORD_ONLY
        is_rest = any(part.startswith("*") for part in parts)
        if is_named and not is_rest:
            parts.append("*")
        star = {inspect.Parameter.VAR_POSITIONAL: "*", inspect.Parameter.VAR_KEYWORD: "**"}
        text = star.get(one.kind, "") + one.name
        if one.annotation is not inspect.Parameter.empty:
            text += f": {_shown(one.annotation)}"
        if one.default is not inspect.Parameter.empty:
            text += f" = {one.default!r}"
        parts.append(text)
    return parts


def _shown(annotation: Any) -> str:
    if annotation is inspect.Signature.empty:
        return ""
    return annotation if isinstance(annotation, str) else getattr(annotation, "__name__", "")


def entry(name: str, thing: Any, owner: str = "") -> str:
    """A heading, the call and what it says of itself; `owner`: the class that it is a member of."""
    heading = f"#### {owner}.{name}" if owner else f"### {name}"
    called = f"{VARIABLES.get(owner, owner.lower())}.{name}" if owner else name
    call = f"```python\n{call_of(called, thing)}\n```"
    return "\n\n".join([heading, call, text_of(thing, owner)]) + "\n"


def class_entry(name: str, of: type) -> list[str]:
    """The class, then its members."""
    if dataclasses.is_dataclass(of):
        parts = [entry(name, of)]
    else:
        parts = [f"### {name}\n\n{text_of(of)}\n"]
    if issubclass(of, enum.Enum):
        values = ", ".join(f"`{one.name}` {one.value}" for one in of)
        return [*parts, values + "\n"]
    for member, what in members(of).items():
        if not (dataclasses.is_dataclass(of) or member == "native"):  # which is for the inside
            parts.append(entry(member, what, owner=name))
    return parts


def error_table() -> str:
    """A row for each class: below which it is, when it comes, what the wire calls it."""
    codes: dict[type, list[str]] = {}
    for code, error in CODE_TO_ERROR.items():
        codes.setdefault(error, []).append(f"`{Code(code).name}`")
    rows = ["| class | is a | when | may be tried again | codes |", "|---|---|---|---|---|"]
    for error in errors():
        bases = [base.__name__ for base in error.__bases__ if base is not Exception]
        again = "yes" if error.retryable else "no"
        when = re.sub(r"\s+", " ", text_of(error))
        shown = ", ".join(codes.get(error, []))
        is_a = ", ".join(f"`{base}`" for base in bases)
        rows.append(f"| `{error.__name__}` | {is_a} | {when} | {again} | {shown} |")
    return "\n".join(rows) + "\n"


def original() -> list[str]:
    """What is left: the names of `infinistore.compat`."""
    told = {*CONNECTING, *CLIENTS, *VALUES, *(error.__name__ for error in errors())}
    parts = [ORIGINAL]
    rows = ["| constant | value |", "|---|---|"]
    for name, thing in documented().items():
        if isinstance(thing, str):
            rows.append(f"| `{name}` | `{thing!r}` |")
        elif inspect.isclass(thing) and issubclass(thing, InfiniStoreError):
            if thing.__name__ != name:
                rows.append(f"| `{name}` | another name for `{thing.__name__}` |")
        elif name not in told:
            parts += class_entry(name, thing) if inspect.isclass(thing) else [entry(name, thing)]
    return [*parts, "### Constants\n", "\n".join(rows) + "\n"]


def page() -> str:
    found = documented()
    parts = [HEAD, "## Connecting\n", *(entry(name, found[name]) for name in CONNECTING)]
    sections: list[tuple[str, tuple[str, ...]]] = [("Clients", CLIENTS), ("Values", VALUES)]
    for title, names in sections:
        parts.append(f"## {title}\n")
        for name in names:
            parts += class_entry(name, found[name])
    parts += ["## Errors\n", error_table(), *original()]
    return "\n".join(parts)


if __name__ == "__main__":
    print(page(), end="")
