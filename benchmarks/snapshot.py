"""Snapshot of a folder against ``get_content_hash`` of ``azure-ai-ml``; check of a cell's undefined names.

Both contenders walk the same 10,000 files (200 MB) with the same ``.amlignore``, which leaves 2,000 others out, and
read through the same warm page cache. Cold: no digest is known. One edit: the tree was hashed before, and one file
has changed since. Rounds are interleaved, in one process.
"""

from __future__ import annotations

import os
import random
import statistics
import tempfile
import time
from pathlib import Path

from benchmarks.timing import interleaved, line, verdict

FILES, IGNORED, TOTAL_BYTES = 10_000, 2_000, 200 * 10**6
#: Lines of the cell, and the goal of its check (milliseconds).
LINES, GOAL_MS = 500, 20.0


def make_tree(root: Path) -> list[Path]:
    """Write the files, 100 in a folder; return those that are not ignored."""
    source = random.Random(7)
    taken = []
    for number in range(FILES + IGNORED):
        ignored = number >= FILES
        folder = root / ("cache" if ignored else "package") / f"part{number % 120:03d}"
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / f"file{number}.py"
        path.write_bytes(source.randbytes(TOTAL_BYTES // FILES))
        if not ignored:
            taken.append(path)
    (root / ".amlignore").write_text("/cache/\n*.log\n!keep.log\n**/build/**\n")
    long_ago = time.time() - 3600
    for path in root.rglob("*"):
        os.utime(path, (long_ago, long_ago))
    return taken


def cell_text(lines: int = LINES) -> str:
    """A training cell of so many lines."""
    block = [
        "def step{n}(model, batch, rate=0.1):",
        "    loss, grads = 0.0, {{}}",
        "    for key, value in batch.items():",
        "        with np.errstate(all='ignore'):",
        "            grads[key] = [x * rate for x in value if x is not None]",
        "        loss += sum(grads[key]) / max(1, len(value))",
        "    return loss, {{k: v for k, v in grads.items() if k in model}}",
        "total{n} = step{n}({{'a': 1}}, {{'a': [1, 2, 3]}})[0]",
        "print(f'step {n}: {{total{n}:.3f}}')",
        "",
    ]
    text = ["import numpy as np"]
    text += [one.format(n=number) for number in range(lines // len(block)) for one in block]
    return "\n".join(text[:lines]) + "\n"


def check_times(rounds: int) -> list[float]:
    """Milliseconds that each check adds to a submit, which parses the cell in any case."""
    from jupyter_amltrain.jobs import notebook_names, preflight

    text = cell_text()
    checks = []
    for _ in range(rounds):
        tree = preflight.parse(text)
        begin = time.perf_counter()
        found = notebook_names.undefined_names(tree, text)
        checks.append(1000 * (time.perf_counter() - begin))
        assert not found, found
    return checks


def main(rounds: int = 9) -> None:
    """Print the table."""
    checks = check_times(5 * rounds)  # before azure-ai-ml is imported, which a kernel never does
    from azure.ai.ml._utils._asset_utils import get_content_hash, get_ignore_file

    from jupyter_amltrain.jobs import file_hash
    from jupyter_amltrain.jobs.snapshot import Snapshot, take_snapshot

    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        files = make_tree(root)

        def ours() -> Snapshot:
            return take_snapshot("script.py", "pass\n", root=root, source=root)

        def timed_ours(known: bool) -> float:
            if not known:
                file_hash._known.clear()
            begin = time.perf_counter()
            snapshot = ours()
            seconds = time.perf_counter() - begin
            assert len(snapshot.files) == FILES + 2, len(snapshot.files)  # with the script and .amlignore
            return seconds

        def azure() -> float:
            begin = time.perf_counter()
            get_content_hash(root, get_ignore_file(root))
            return time.perf_counter() - begin

        def after_edit() -> float:
            path = files[after_edit.number % FILES]  # type: ignore[attr-defined]
            after_edit.number += 1  # type: ignore[attr-defined]
            path.write_bytes(b"# edited\n" + path.read_bytes()[:-9])
            return timed_ours(known=True)

        after_edit.number = 0  # type: ignore[attr-defined]
        azure()
        cold = interleaved({"azure": azure, "ours": lambda: timed_ours(known=False)}, rounds)
        edited = interleaved({"azure": azure, "ours": after_edit}, rounds)

    print(f"Snapshot of {FILES:,} files, {TOTAL_BYTES / 1e6:.0f} MB, with {IGNORED:,} ignored (wall)")
    print(line("get_content_hash of azure-ai-ml", [*cold["azure"], *edited["azure"]], "s"))
    print(line("ours, no digest known", cold["ours"], "s"))
    print(line("ours, one file edited", edited["ours"], "s"))
    print(line(f"undefined names of {LINES} lines", checks, "ms"))
    middle = statistics.median
    print(verdict("cold / get_content_hash", middle(cold["ours"]) / middle(cold["azure"]), 0.6))
    print(verdict("one edit / get_content_hash", middle(edited["ours"]) / middle(edited["azure"]), 0.12))
    print(verdict(f"undefined names / {GOAL_MS:g} ms", middle(checks) / GOAL_MS, 1.0))


if __name__ == "__main__":
    main()
