"""What a round has found: a table, a file, what bills."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from tools.azure_live.findings import dumped
from tools.azure_live.observed import UNSWITCHED
from tools.azure_live.round import Round

WORDS = {True: "holds", False: "DOES NOT HOLD", None: "not checked"}


def tell(done: Round, file: Path) -> int:
    """The table, the file, what bills; the exit code."""
    from azureml_emulator.switches import PACES, TABLE

    assumed = {switch: _plain(what[0]) for switch, what in TABLE.items() if switch not in PACES}
    assumed |= {name: what for name, (what, _) in UNSWITCHED.items()}
    rows = {name: done.found.get(name, (None, "")) for name in assumed}
    width = max(map(len, rows))
    print(f"\n{'assumption (switch)':<{width}}  {'':<14} seen")
    for switch, (holds, seen) in sorted(rows.items(), key=lambda row: (row[1][0] is None, row[1][0] or False)):
        print(f"{switch:<{width}}  {WORDS[holds]:<14} {seen}")
    for name, text in done.notes.items():
        print(f"{name}: {text}" if text else f"{name}: nothing")
    value = {
        "schema": 1,
        "when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
        "rows": [
            {"switch": switch, "assumed": assumed[switch], "result": WORDS[holds].lower(), "seen": seen}
            for switch, (holds, seen) in rows.items()
        ],
        "notes": done.notes,
        "ended early": done.broken,
        "left": done.left,
        "bills": done.bills,
    }
    file.write_text(dumped(value) + "\n", encoding="utf-8")
    print(f"Written: {file}")
    for line in done.left:
        print(f"NOT DELETED: {line}")
    if done.bills is None:
        print("It is not known what still costs money: see the Compute page of the studio.")
    elif not done.bills:
        print("No machine in the workspace is costing money now.")
    for bill in done.bills or ():
        print(f"Still costs money: {bill['kind']} {bill['name']}, {bill['nodes']} of {bill['size']}")
    if done.broken or done.left:
        return 1
    return 3 if any(holds is False for holds, _ in rows.values()) else 0


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, list)) else str(value)
