"""One page of a GPU host's figures: copies, then vLLM.

python scripts/gpu/report.py FOLDER     reads what run.sh bench has left, writes report.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path


def copies(path: Path) -> list[str]:
    """The sweep as a table."""
    rows = [
        "| what | block | GB/s | one pinned copy | ratio | target |",
        "|---|---|---|---|---|---|",
    ]
    for line in json.loads(path.read_text()):
        target = "" if line["target"] is None else f">= {line['target']:.2f}"
        if line["target"] is not None:
            target += " ok" if line["ratio"] >= line["target"] else " short"
        rows.append(
            f"| {line['what']} | {line['block'] >> 10} KiB | {line['gb_s']:.1f} "
            f"| {line['limit_gb_s']:.1f} | {line['ratio']:.3f} | {target} |"
        )
    return rows


def main() -> int:
    """Joins the parts; status 1 if one is missing."""
    if len(sys.argv) != 2:
        raise SystemExit(__doc__)
    folder = Path(sys.argv[1])
    page = ["# GPU figures", ""]
    missing = []
    if (folder / "copies.json").exists():
        page += ["## Copies: `scripts/gpu/copy_sweep.py`", "", *copies(folder / "copies.json"), ""]
    else:
        missing.append("copies.json")
    for name in ("times", "outputs"):
        if (folder / f"{name}.md").exists():
            page += [f"## vLLM, {name}: `scripts/gpu/vllm_bench.py {name}`", ""]
            page += [(folder / f"{name}.md").read_text(), ""]
        else:
            missing.append(f"{name}.md")
    page += [f"missing: {name}" for name in missing]
    (folder / "report.md").write_text("\n".join(page))
    print(f"{folder / 'report.md'}" + (f"; missing: {', '.join(missing)}" if missing else ""))
    return 1 if missing else 0


if __name__ == "__main__":
    sys.exit(main())
