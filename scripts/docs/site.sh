#!/usr/bin/env bash
# The documentation as a site in build/site, to be read from the disk: every link and anchor in it leads
# somewhere, and nothing in it is fetched from elsewhere. Its generator is installed below build/.
. "$(dirname "$0")/../stage.sh"
TOOLS=$ROOT/build/docs-tools

install_generator() {
  python3 scripts/requirements.py docs >build/docs-requirements.txt
  cmp -s build/docs-requirements.txt "$TOOLS/installed" && return
  python3 -m venv --clear "$TOOLS"
  "$TOOLS/bin/python" -m pip install -q --progress-bar off -r build/docs-requirements.txt \
    >build/docs-pip.log 2>&1 </dev/null || { tail -20 build/docs-pip.log >&2; return 1; }
  cp build/docs-requirements.txt "$TOOLS/installed"
}

# With the paths of the repository, so that links mean the same here and there.
copy_sources() {
  rm -rf build/docs && mkdir -p build/docs
  cp --parents README.md ARCHITECTURE.md CONTRIBUTING.md CHANGELOG.md LICENSE \
    benchmarks/README.md benchmarks/traces/README.md build/docs
  cp -r docs build/docs/docs
  cp --parents scripts/docs/iframe-worker.js scripts/docs/site.css build/docs
}

build_site() {
  copy_sources
  # Its theme's advertisement for another generator goes unread. Not --quiet: that makes --strict blind.
  NO_MKDOCS_2_WARNING=1 "$TOOLS/bin/mkdocs" build --strict >build/docs.log 2>&1 ||
    { grep -E '^(WARNING|ERROR|Aborted)' -A 2 build/docs.log >&2; return 1; }
  local fetched
  fetched=$(grep -rnoE --include='*.html' --include='*.css' \
    '(<(script|img|iframe)[^>]* src|<link[^>]* href)="?(https?:)?//[^" >]*|(@import|url\() *["'\'']?(https?:)?//[^)]*' \
    build/site || true)
  [ -z "$fetched" ] || die "the site fetches from elsewhere: $fetched"
}

mkdir -p build
stage "generator of the site" 5 install_generator
stage "site" 2 build_site
say "docs: build/site/index.html, $(find build/site -name '*.html' | wc -l) pages"
