"""Checks that ``docs/variables.md`` has each variable that the code reads; part of ``make check``."""

from __future__ import annotations

import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
#: Prefix of variables whose rest is in another string, and a marker in generated files.
_PARTS = {"AMLTRAIN_AZURE_", "AMLTRAIN_AZURE", "AMLTRAIN_SCRIPT"}
_NAME = re.compile(r"\bAMLTRAIN_[A-Z_]+\b")


def main() -> int:
    """Print the differences; 1 if there is one."""
    sources = (path.read_text(encoding="utf-8") for path in (ROOT / "jupyter_amltrain").rglob("*.py"))
    read = {name for text in sources for name in _NAME.findall(text)} - _PARTS
    read |= {f"AMLTRAIN_AZURE_{name}" for name in env_names()}
    listed = set(_NAME.findall((ROOT / "docs" / "variables.md").read_text(encoding="utf-8")))
    problems = [f"docs/variables.md lacks {name}" for name in sorted(read - listed)]
    problems += [f"docs/variables.md has {name}, which nothing reads" for name in sorted(listed - read)]
    print("\n".join(problems))
    return 1 if problems else 0


def env_names() -> set[str]:
    """Ends of the names that Azure's code reads by a function."""
    folder = ROOT / "jupyter_amltrain" / "azure"
    found = (re.findall(r'env_seconds\("([A-Z_]+)"', path.read_text(encoding="utf-8")) for path in folder.rglob("*.py"))
    return {name for names in found for name in names}


if __name__ == "__main__":
    sys.exit(main())
