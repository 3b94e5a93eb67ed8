"""`infinistore.lib`: the original's module of that name, which its clients import from."""

from __future__ import annotations

from infinistore.compat import *  # noqa: F403 -- every name of it
from infinistore.compat import __all__ as _names
from infinistore.server import embedded as _infinistore

__all__ = [*_names, "_infinistore"]
