"""Checks names and prose against the glossary: ``python -m tools.words``; part of ``make check``.

Each row below is a word that this project does not use, and the word of ``docs/glossary.md`` that stands for it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

#: Identifiers, in Python and TypeScript.
NAMES = {
    r"asked": "args, request",
    r"told|said": "message, notified, text",
    r"PATIENCE|SELDOM|AGAIN|MOST|LEAST|KEPT|LOOK": "<WHAT>_TIMEOUT_S, MAX_..., ..._INTERVAL_S",
    r"why_not": "disabled_reason",
    r"lookers?|mourn(?:ers|ing)": "viewers, callbacks",
    r"[A-Za-z]*(?:Painters|Bystanders|Shelf|Crew|Pyramid|Elsewhere|Holdings|Endings|Looks)": "see docs/glossary.md",
    r"bystanders": "protected_pids",
}
#: Phrases, in prose: docstrings, comments, messages and pages.
PHRASES = {
    r"(?:is|are|was|were|be|been) (?:told|said)\b": "is shown, is reported, is notified",
    r"(?:comes?|came|brought|bring(?:s|ing)?) home": "is returned",
    r"is none of": "is not",
    r"who (?:waits|comes|asks|looks)": "waiters, callers, viewers",
    r"so (?:long|many|much|few) (?:ago|after|before)?\b(?= until| seconds| bytes| times)": "a noun and its number",
    r"all the same\b": "still",
    r"of ours\b": "our own",
    r"anew\b": "again",
    r"colour|behaviour|organis|cancell(?:ed|ing)|recognis|neighbour": "American spelling",
    r"favour|honour|centre\b|serialis|initialis": "American spelling",
    r"[Ww]hence\b": "where from",
}
#: Names that others chose, removed from a line before it is searched: asyncio's method, a keyword of the wire.
FOREIGN = re.compile(r"\.cancelled\(\)|\bwhy_not=")
#: Names that the wire of released versions has, by file.
WIRE_NAMES = {
    "labextension/src/protocol.ts": {"said", "why_not"},
    "labextension/src/sections/targetActions.ts": {"said"},
    "jupyter_amltrain/schema/fields.py": {"why_not"},
}
ENDINGS = {".py", ".ts", ".md", ".json", ".ipynb"}
#: Texts of others, recorded data, and the history of releases.
LEFT_OUT = (
    "tests/data/",
    "tests/golden/schema-1/",
    "azureml_emulator/data/",
    "yarn.lock",
    "CHANGELOG.md",
    "tools/words.py",
)


def files() -> list[Path]:
    """Files under version control that the words hold for."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split(
        "\n"
    )
    return [ROOT / name for name in listed if Path(name).suffix in ENDINGS and not name.startswith(LEFT_OUT)]


def lines(path: Path) -> list[str]:
    """Lines of a file; of a notebook without its saved outputs, which record what a past version printed."""
    found = path.read_text(encoding="utf-8").splitlines()
    if path.suffix != ".ipynb":
        return found
    kept, saved = [], False
    for line in found:
        saved = saved or line == '   "outputs": ['
        kept.append("" if saved else line)
        saved = saved and line != "   ],"
    return kept


def findings(path: Path) -> list[tuple[int, str, str]]:
    """Line, word and better word for each finding."""
    found = []
    code = path.suffix in (".py", ".ts")
    wire = WIRE_NAMES.get(path.relative_to(ROOT).as_posix(), set())
    for number, text in enumerate(lines(path), 1):
        line = FOREIGN.sub("", text)
        for pattern, better in PHRASES.items():
            found += [(number, m.group(0), better) for m in re.finditer(rf"\b(?:{pattern})", line)]
        if code:
            bare = re.sub(r"\"[^\"]*\"|'[^']*'|`[^`]*`|(?:#|//|^\s*\*).*", "", line)
            for pattern, better in NAMES.items():
                words = [m.group(0) for m in re.finditer(rf"(?<![\w.-])_?(?:{pattern})(?!\w)", bare)]
                found += [(number, word, better) for word in words if word not in wire]
    return found


def main() -> None:
    """Print the findings; the exit status says whether there are any."""
    bad = 0
    for path in files():
        for number, word, better in findings(path):
            bad += 1
            print(f"{path.relative_to(ROOT)}:{number}: {word!r}; better: {better}")
    if bad:
        sys.exit(f"{bad} words that this project does not use. See docs/glossary.md.")


if __name__ == "__main__":
    main()
