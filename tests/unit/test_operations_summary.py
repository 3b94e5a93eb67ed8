"""What `make test-operations` sums up: every test that it runs is of a topic, none is hidden."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

ROOT = Path(__file__).parents[2]
SUMMARY = runpy.run_path(str(ROOT / "scripts/operations_summary.py"))
REPORT = """<testsuites><testsuite>
<testcase classname="tests.e2e.test_verify" name="a"/>
<testcase classname="tests.e2e.test_verify" name="b"><skipped message="no"/></testcase>
<testcase classname="tests.operations.test_page" name="c"><failure message="no"/></testcase>
<testcase classname="tests.operations.test_page" name="d"><error message="no"/></testcase>
<testcase classname="tests.elsewhere" name="e"/>
</testsuite></testsuites>"""


def test_what_is_run_has_a_topic_and_every_topic_is_run() -> None:
    words = re.findall(r"\btests/[\w/.]+", (ROOT / "scripts/operations.sh").read_text())
    assert len(words) > 10
    files = [
        file
        for path in map(ROOT.joinpath, words)
        for file in ([path] if path.is_file() else path.glob("test_*.py"))
    ]
    places = [".".join(file.relative_to(ROOT).with_suffix("").parts) for file in files]
    told = {SUMMARY["topic_of"](place) for place in places}
    assert told == set(SUMMARY["TOPICS"].values())


def test_each_topic_is_a_line_with_what_became_of_its_tests(tmp_path: Path) -> None:
    (tmp_path / "report.xml").write_text(REPORT)
    lines = [line.split("  ") for line in SUMMARY["summary"](tmp_path / "report.xml")]
    assert [(words[1], words[-1].strip()) for words in lines] == [
        ("the page in Chromium: its numbers are the command line's", "2 failed"),
        ("verify finds what is damaged", "1 passed, 1 skipped"),
        ("other tests", "1 passed"),
    ]
