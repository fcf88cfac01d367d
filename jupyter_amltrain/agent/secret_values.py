"""Finds what must not be stored with a run by accident: secrets inside values, and clients that hold credentials.

The module travels alone, as ``amltrain_secrets.py`` among the hooks of a job, so it imports only the standard library.
"""

from __future__ import annotations

import functools
import os
import re
import sys
import types
from collections.abc import Mapping
from typing import Any, Collection, Iterator, List, Optional, Set, Tuple

# Values that tell by themselves. A key has digits, `risk-assessment-model` and `sk-learn-pipeline` have none.
_VALUE = re.compile(
    r"\b(?:AKIA|ASIA)[0-9A-Z]{16}\b|\bgh[pousr]_\w{20}|\bgithub_pat_\w|\bhf_[A-Za-z0-9]{20}|\bglpat-[\w-]{8}"
    r"|(?<![\w-])sk-(?=[\w-]*\d)(?:[a-z0-9]+-){0,3}\w{16}|\bxox[abeoprs]-\w|\bAIza[\w-]{35}|\bnpm_[A-Za-z0-9]{30}"
    r"|\bpypi-AgEI|\bdapi[0-9a-f]{32}|\beyJ[\w-]{10,}\.eyJ|\bBearer\s+[\w.~+/-]{20}|-----BEGIN"
    r"|AccountKey=|SharedAccess(?:Key|Signature)|[?&]sig=|://[^/\s:@]*:[^/\s@]+@"
    r"|(?i:;\s*(?:password|passwd|pwd)\s*=\s*[^\s;])|(?i:^(?:password|passwd|pwd)=[^\s;]+;)|(?<![A-Za-z0-9+/])[A-Za-z0-9+/]{86}=="
)

# Words that mark a name as secret, alone or at the end of a word (MYPASSWORD).
_WORDS = frozenset(
    ["PASSWORD", "PASSWD", "PASSPHRASE", "PWD", "SECRET", "SECRETS", "APIKEY", "CREDENTIAL", "CREDENTIALS"]
)

_ENDS = ("PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "SECRET")

_PAIRS = frozenset(
    ["API KEY", "ACCESS KEY", "PRIVATE KEY", "ACCOUNT KEY", "STORAGE KEY", "CONNECTION STRING", "SAS KEY", "SAS TOKEN",
     "ACCESS TOKEN", "AUTH TOKEN", "BEARER TOKEN", "REFRESH TOKEN"]
)  # fmt: skip

#: Words that mark an environment variable as secret; in a parameter they mostly mean a tokenizer, an early-stopping
#: patience or a forward pass.
_ENV_WORDS = ("TOKEN", "PAT", "PASS")

#: Words that mark a name as secret only if the value looks generated.
_WEAK_WORDS = frozenset([*_ENV_WORDS, "AUTH"])

#: A last word that makes the name a property of a secret, not a secret: PASSWORD_FILE, token_type, secret_name.
_ABOUT = frozenset(
    ["FILE", "PATH", "DIR", "URL", "URI", "NAME", "TYPE", "POLICY", "MODE", "FORMAT", "LENGTH", "LEN", "SIZE", "DIM",
     "COUNT", "LIMIT", "TTL", "SCOPE", "FIELD", "COLUMN", "HEADER", "CLASSIFICATION", "PROMPT", "SEED", "RATE",
     "STRATEGY", "VARIABLE"]
)  # fmt: skip

_HARMLESS = re.compile(r"(?:-?[\d.]*|-?[\d.]+e[+-]?\d+|true|false|yes|no|on|off|none|null|<\w*>|\[\w*\]|</?\w+>)", re.I)

_PIN = re.compile(r"[\d.]{5,}")

_GENERATED = re.compile(r"(?=.*\d)(?=.*[A-Za-z])[\w.~+=-]{16,}")


def looks_secret(name: str, value: str, *, env: bool = False) -> bool:
    """Return whether a value should be passed by ``--secret``.

    Parameters
    ----------
    name
        Name as typed: ``DB_PASS``, ``api-key``, ``dbPassword``; empty for a value without a name.
    env
        Whether it is an environment variable, for which weaker evidence is enough.
    """
    if _VALUE.search(value):
        return True
    words = re.sub(r"[^A-Z0-9]+", "_", re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", name).upper()).strip("_").split("_")
    if words[-1] in _ABOUT:
        return False
    certain = (
        not _WORDS.isdisjoint(words)
        or words[-1].endswith(_ENDS)
        or any(f"{a} {b}" in _PAIRS for a, b in zip(words, words[1:]))
    )
    if certain:
        return not _HARMLESS.fullmatch(value) or bool(_PIN.fullmatch(value))
    if env and ("TOKEN" in words or words[-1] in _ENV_WORDS or _glued(words[-1])):
        return not _HARMLESS.fullmatch(value)
    return words[-1] in _WEAK_WORDS and _GENERATED.fullmatch(value) is not None


def _glued(word: str) -> bool:
    """Return whether a word ends with ``PASS`` and is not a common English word."""
    return word.endswith("PASS") and word not in ("BYPASS", "COMPASS", "SURPASS", "LOWPASS", "HIGHPASS", "BANDPASS")


#: Parts of a value that are looked at.
_MAX_PARTS = 50_000
#: Longest text that is compared: keys are short, and a text of a book has no end.
_MAX_TEXT = 8_192
#: Modules whose objects sign in somewhere.
CREDENTIAL_MODULES = (
    "azure.identity", "azure.core.credentials", "azure.ai.ml", "azure.storage", "azure.keyvault", "msal", "boto3",
    "botocore", "google.auth", "google.oauth2", "google.cloud", "googleapiclient", "openai", "anthropic", "cohere",
    "huggingface_hub.hf_api", "huggingface_hub.inference", "paramiko", "asyncssh", "keyring", "sqlalchemy.engine",
    "psycopg", "psycopg2", "pymysql", "pyodbc", "snowflake", "pymongo", "redis", "kaggle", "tweepy", "slack_sdk",
    "stripe", "databricks", "jwt", "cryptography.hazmat",
)  # fmt: skip
_SECRET_TYPES = frozenset({"SecretStr", "SecretBytes", "_Environ"})
_LEAVES = (int, float, complex, bool, type(None), types.ModuleType, types.CodeType, range, slice)


def secret_in(name: str, value: Any, hidden: Collection[str] = ()) -> str:
    """Return what makes a value confidential, for a message without the value; empty if nothing does.

    Parameters
    ----------
    hidden
        Texts that are known to be secret.
    """
    seen: Set[int] = set()
    stack: List[Tuple[str, str, Any]] = [("", name, value)]
    for _ in range(_MAX_PARTS):
        if not stack:
            break
        place, key, one = stack.pop()
        # Not isinstance: it reads an attribute of the object, which may run code or raise.
        if issubclass(type(one), _LEAVES) or id(one) in seen:
            continue
        if (kind := _credential_type(one)) is not None:
            return f"holds credentials ({kind}{f' in {place}' if place else ''})"
        if issubclass(type(one), (str, bytes, bytearray)):
            text = one[:_MAX_TEXT] if isinstance(one, str) else bytes(one[:_MAX_TEXT]).decode("latin-1")
            if text in hidden or looks_secret(key, text, env="environ" in place):
                return f"looks like a secret{f' ({place})' if place else ''}"
            continue
        seen.add(id(one))
        stack += _safe_parts(name, place, key, one)
    return ""


def _safe_parts(name: str, place: str, key: str, value: Any) -> List[Tuple[str, str, Any]]:
    try:
        return [(f"{place or name}{step}" if step else place, inner, part) for step, inner, part in _parts(key, value)]
    except Exception:  # objects of others can raise anything
        return []


def _credential_type(value: Any) -> Optional[str]:
    kind = type(value)
    module = str(getattr(kind, "__module__", ""))
    if kind.__name__ in _SECRET_TYPES or any(
        module == one or module.startswith(f"{one}.") for one in CREDENTIAL_MODULES
    ):
        return kind.__name__
    if issubclass(kind, (type, types.FunctionType)):
        return None
    headers = getattr(value, "headers", None) if module.partition(".")[0] in ("requests", "httpx", "aiohttp") else None
    if headers is not None and (
        getattr(value, "auth", None) or "authorization" in {str(one).lower() for one in headers}
    ):
        return kind.__name__
    return None


def _parts(key: str, value: Any) -> Iterator[Tuple[str, str, Any]]:
    """Yield the place, the name and the value of each part of an object."""
    if isinstance(value, Mapping):
        is_environ = "PATH" in value and "HOME" in value
        try:
            for one, part in list(value.items()):
                text = one if isinstance(one, str) else key
                yield f"[{_shown(one)}]" + ("environ" if is_environ else ""), text, part
                yield "", "", one
        except Exception:  # a mapping of somebody else can raise anything
            return
        if type(value) is dict:
            return
    elif isinstance(value, (list, tuple, set, frozenset)):
        yield from (("", key, part) for part in list(value))
        if type(value) in (list, tuple, set, frozenset):
            return
    elif isinstance(value, functools.partial):
        yield "", key, value.args
        yield "", key, value.keywords
    elif isinstance(value, types.FunctionType):
        if value.__closure__:
            for inner, cell in zip(value.__code__.co_freevars, value.__closure__):
                try:
                    yield f".{inner}", inner, cell.cell_contents
                except ValueError:  # not assigned yet
                    continue
        yield "", key, value.__defaults__ or ()
        yield "", key, value.__kwdefaults__ or {}
        return
    elif isinstance(value, (type, *_large())):
        return
    for inner, part in list(getattr(value, "__dict__", {}).items()):
        yield f".{inner}", inner, part
    for kind in type(value).__mro__:
        for inner in getattr(kind, "__slots__", ()) if kind.__module__ != "builtins" else ():
            if isinstance(inner, str) and (part := getattr(value, inner, None)) is not None:
                yield f".{inner}", inner, part


def _shown(key: object) -> str:
    return repr(key)[:40] if isinstance(key, (str, int)) else type(key).__name__


def _large() -> Tuple[type, ...]:
    """Return types of numbers and tables, whose parts are not looked at one by one."""
    names = ("numpy:ndarray", "pandas:DataFrame", "pandas:Series", "pandas:Index", "torch:Tensor", "polars:DataFrame",
             "polars:Series", "pyarrow:Table")  # fmt: skip
    found = (getattr(sys.modules.get(one.partition(":")[0]), one.partition(":")[2], None) for one in names)
    return tuple(kind for kind in found if isinstance(kind, type)) + (os.PathLike,)
