"""Tests of other packages' clients: for `make test-clients`, each in a process of its own."""

from __future__ import annotations

import os

# `make test` has none of the packages; scripts/test_clients.py says which one a run has.
_CLIENT = os.environ.get("INFINISTORE_TEST_CLIENT", "none")
collect_ignore_glob = ["test_*.py"] if _CLIENT == "none" else []
