"""Prints what pyproject.toml asks for: at run time and for development, or by a named group."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: pip brings its own copy
    from pip._vendor import tomli as tomllib


def group(groups: dict[str, list[Any]], name: str) -> list[str]:
    """The requirements of a dependency group, with the groups it includes."""
    found: list[str] = []
    for item in groups[name]:
        found += group(groups, item["include-group"]) if isinstance(item, dict) else [item]
    return found


def main() -> None:
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text())
    groups = project["dependency-groups"]
    if sys.argv[1:] == ["runtime"]:
        print("\n".join(project["project"]["dependencies"]))
        return
    if len(sys.argv) > 1:
        print("\n".join(group(groups, sys.argv[1])))
        return
    print("\n".join(project["project"]["dependencies"] + group(groups, "dev")))


if __name__ == "__main__":
    main()
