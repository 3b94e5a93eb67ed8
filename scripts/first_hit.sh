#!/usr/bin/env bash
# From a fresh clone to the README's first hit, in an environment of its own: how long it takes, and how
# much of that is InfiniStore's own part (its build, its start, its example; not what others made and
# pip fetches). Ends with status 1 past 10 minutes, or 2 of its own.
. "$(dirname "$0")/stage.sh"

fresh_folder=$(mktemp -d)
server=
trap '[ -z "$server" ] || kill "$server" 2>/dev/null; rm -rf "$fresh_folder"' EXIT

fetch_others() {
  "$VENV/bin/python" -m venv "$fresh_folder/venv"
  for part in runtime build; do
    "$VENV/bin/python" scripts/requirements.py "$part" >"$fresh_folder/$part.txt"
  done
  "$fresh_folder/venv/bin/pip" install -q -r "$fresh_folder/runtime.txt" -r "$fresh_folder/build.txt"
}

first_hit() {
  local python=$fresh_folder/venv/bin/python
  CCACHE_DISABLE=1 "$fresh_folder/venv/bin/pip" install -q --no-build-isolation --no-deps "$fresh_folder/clone"
  cd "$fresh_folder"
  "$fresh_folder/venv/bin/infinistore" --pool 64MiB --port 0 --admin-port 0 --unix-socket none >ready 2>log &
  server=$!
  for _ in $(seq 600); do
    grep -q ready ready && break
    sleep 0.1
  done
  "$python" - "$fresh_folder/clone/README.md" "$(sed 's/.* data=\([^ ]*\) .*/\1/' ready)" >example <<'PY'
import re, sys

code = re.search(r"```python\n(.*?)```", open(sys.argv[1]).read(), re.S)[1]
exec(code.replace("127.0.0.1:22345", sys.argv[2]))
assert (target[: 32 * 1024] == cache[: 32 * 1024]).all()
PY
}

git clone -q . "$fresh_folder/clone"
fetch_others
others=$SECONDS
first_hit
say "first hit: $SECONDS s after the clone (at most 600), own part $((SECONDS - others)) s (at most 120), \
load $(cut -d" " -f1 /proc/loadavg) on $(nproc) CPUs"
[ "$SECONDS" -lt 600 ] && [ "$((SECONDS - others))" -lt 120 ]
