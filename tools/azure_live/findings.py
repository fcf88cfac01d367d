"""What a check has found, and that no secret is in it."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from typing import Any

from jupyter_amltrain.azure import errors

#: Whether an assumption holds (``None``: not checked), and what was seen.
Seen = tuple["bool | None", str]
#: Any answer: what it says is what we want to know.
ANY = range(200, 600)


def attempt(check: Callable[[], Seen]) -> Seen:
    """A check's finding, or why there is none."""
    try:
        return check()
    except Exception as error:
        return None, errors.redact(f"{type(error).__name__}: {error}")[:200]


def attempt_all(check: Callable[[], dict[str, Seen]]) -> dict[str, Seen]:
    """As :func:`attempt`, of several at once; nothing where it fails."""
    try:
        return check()
    except Exception as error:
        print(f"  not checked: {errors.redact(f'{type(error).__name__}: {error}')[:300]}", flush=True)
        return {}


def is_secret(text: str) -> bool:
    """Whether a text has a signature or a token in it (of what is written down none may)."""
    return "sig=" in text or "eyJ" in text or bool(_like_a_key(text))


def _like_a_key(text: str) -> bool:
    for word in text.split():
        try:
            if len(word) >= 80 and len(base64.b64decode(word, validate=True)) == 64:
                return True
        except ValueError:
            continue
    return False


def dumped(value: Any) -> str:
    """JSON of what was found.

    Raises
    ------
    ValueError
        There would be a secret in it.
    """
    text = json.dumps(value, indent=2)
    if is_secret(text):
        raise ValueError("what was found holds a signature or a token, and is not written")
    return text
