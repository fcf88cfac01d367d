"""Formatting of text for users: names, paths, sizes, times, tables, close matches."""

from __future__ import annotations

import math
import os
import re
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

#: Characters of a table cell; longer text is cut.
MAX_CELL = 60

#: Text of a null, which is not an absent value; and maximum characters of a value.
NULL, _MAX_VALUE_CHARS = "null", 24

#: Placeholder for a value that a device does not report.
UNKNOWN = "n/a"
#: Escape sequences of terminals (ECMA-48): control sequences, operating system commands, and others of two characters.
_ANSI = re.compile(r"\x1b(?:\[[0-9;?]*[ -/]*[@-~]|[\]_][^\x07\x1b]*(?:\x07|\x1b\\)?|[@-Z\\-_])")


def table(header: Sequence[str], rows: Sequence[Sequence[str]], *, whole_end: bool = False) -> str:
    """Format columns under their headings, two spaces apart; with `whole_end` the last column is not cut."""
    cut = [[*map(shorten, row[:-1]), row[-1] if whole_end else shorten(row[-1])] for row in rows]
    widths = [max(map(len, column)) for column in zip(header, *cut, strict=True)]
    lines = [
        "  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in [list(header), *cut]
    ]
    return "\n".join(lines)


def pairs(rows: Sequence[tuple[str, str]]) -> str:
    """Format ``name  value`` lines with aligned values; rows without a value are left out."""
    rows = [row for row in rows if row[1]]
    width = max((len(name) for name, _ in rows), default=0)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in rows)


def ago(then: float, now: float | None = None) -> str:
    """``just now``, ``12 s ago``, ``4 min ago``, ``3 h ago``, ``2 d ago``; unix seconds."""
    seconds = (time.time() if now is None else now) - then
    if not then:
        return ""
    if seconds < 2:  # also after a clock was set back
        return "just now"
    for limit, unit, size in ((120, "s", 1), (7200, "min", 60), (172800, "h", 3600)):
        if seconds < limit:
            return f"{seconds // size:.0f} {unit} ago"
    return f"{seconds // 86400:.0f} d ago"


def silence(seen: float) -> str:
    """Return ``target not responding, last seen at 14:03:12`` in local time; without the time if it was never seen."""
    return "target not responding" + (time.strftime(", last seen at %H:%M:%S", time.localtime(seen)) if seen else "")


def measure(value: float | None, unit: str) -> str:
    """``93 %``, ``40,536 MiB``; :data:`UNKNOWN` for a value that a device does not report."""
    return UNKNOWN if value is None or value != value else f"{value:,.0f} {unit}"


def close_matches(word: str, words: Iterable[str], n: int = 3, cutoff: float = 0.5) -> list[str]:
    """Return up to `n` of `words` similar to the misspelled `word`, closest first."""
    import difflib  # slow: keep it out of %load_ext

    return difflib.get_close_matches(word, list(words), n, cutoff)


def did_you_mean(near: Sequence[str], otherwise: str = "", *, prefix: str = "") -> str:
    """``Did you mean list or logs?``, or `otherwise` without a close match."""
    return f"Did you mean {prefix}{' or '.join(near)}?" if near else otherwise


def shorten(text: str, limit: int = MAX_CELL) -> str:
    """Return the text in one line, cut to `limit` characters."""
    text = " ".join(text.split())
    return text if len(text) <= limit else f"{text[: limit - 1]}…"


def value_text(value: Any) -> str:
    """Return a value in a few characters; empty for ``None``, which is an absent one."""
    if value is None:
        return ""
    return shorten(f"{value:.4g}" if isinstance(value, float) else str(value), _MAX_VALUE_CHARS)


# No vowels and no look-alike characters: no rude words, and easy to read aloud.
_ALPHABET = "23456789bcdfghjkmnpqrstvwxz"

_SUFFIX_LENGTH = 5


def slug(name: str) -> str:
    """Convert `name` to 1 to 40 characters of ``a-z 0-9 -``."""
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")[:40].strip("-")
    return text or "run"


def new_run_id(name: str) -> str:
    """Return a new id ``<slug>-<5 characters>``: 14 million ids for each name."""
    import secrets  # slow, with hashlib and base64: keep it out of %load_ext

    return f"{slug(name)}-{''.join(secrets.choice(_ALPHABET) for _ in range(_SUFFIX_LENGTH))}"


def printable(name: str) -> str:
    """Return a file name as it can be shown: bytes that are not UTF-8 and control characters become ``?``."""
    return "".join(char if char.isprintable() else "?" for char in name)


def without_ansi(text: str) -> str:
    """Return text without the escape sequences that color it or move the cursor."""
    return _ANSI.sub("", text)


def tilde(path: str) -> str:
    """Format `path` for users: the home folder as ``~``, bytes that are not UTF-8 as ``\ufffd``."""
    home = os.path.expanduser("~")
    if not path.isascii():
        path = path.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if home not in ("", "/") and (path == home or path.startswith(home + os.sep)):
        return "~" + path[len(home) :]
    return path


def notebook_name(environ: Mapping[str, str] = os.environ) -> str:
    """Stem of the notebook's file name, from the environment that Jupyter Server sets; empty if unknown."""
    path = environ.get("JPY_SESSION_NAME", "").replace("\\", "/")
    return Path(path).stem if path.endswith(".ipynb") else ""


def notebook_path(environ: Mapping[str, str] = os.environ) -> str:
    """Path of the notebook's file, from the environment that Jupyter Server sets; empty if unknown."""
    path = environ.get("JPY_SESSION_NAME", "")
    return os.path.abspath(path) if path.endswith(".ipynb") else ""


def seconds_text(seconds: float | None) -> str:
    """``0.4 s``, ``12 s``, ``2 min 3 s``, ``1 h 4 min``."""
    if seconds is None:
        return "?"
    if seconds < 9.95:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def finite_or_text(value: float) -> float | str:
    """Return the value of a metric for JSON, which has no number for ``nan``, ``inf`` and ``-inf``."""
    return value if math.isfinite(value) else str(float(value))


def money(amount: float, currency: str) -> str:
    """``12.24 USD``; small amounts with as many decimals as they need."""
    return f"{amount:.2f} {currency}".rstrip() if amount >= 0.1 else f"{amount:.3g} {currency}".rstrip()


def counted(number: int, noun: str) -> str:
    """``1 machine``, ``2 machines``."""
    return f"{number} {noun}{'' if number == 1 else 's'}"


def bytes_text(size: float | None) -> str:
    """``3.2 MiB``."""
    if size is None:
        return "n/a"
    for unit in ("B", "KiB", "MiB", "GiB", "TiB"):
        if abs(size) < 1024 or unit == "TiB":
            return f"{size:.0f} {unit}" if unit == "B" else f"{size:.1f} {unit}"
        size /= 1024
    raise AssertionError("unreachable")
