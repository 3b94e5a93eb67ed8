#!/usr/bin/env bash
# Installs the browser that the web page's tests drive, as root with apt; else says how it is installed.
. "$(dirname "$0")/stage.sh"

[ -z "${CHROMIUM:-}" ] && ! command -v chromium chromium-browser google-chrome >/dev/null || exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then
  say "no Chromium: the web page's tests skip; on Debian or Ubuntu, as root: apt-get install chromium"
  exit 0
fi
mkdir -p build
{ apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium; } \
  >build/chromium.log 2>&1 || { tail -5 build/chromium.log >&2; exit 1; }
