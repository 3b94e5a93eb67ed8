#!/usr/bin/env bash
# Removes what the build made, models included; .venv stays (delete it to start from nothing).
. "$(dirname "$0")/stage.sh"
rm -rf build .pytest_cache .mypy_cache .ruff_cache .hypothesis .cache
rm -f "$STAMPS/extension" "$STAMPS/editable"
find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
say "removed build/ and caches; .venv stays"
