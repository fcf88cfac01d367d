"""Finds what must not leave the notebook by accident: secrets inside values, and clients that hold credentials."""

from __future__ import annotations

import functools
import os
import sys
import types
from collections.abc import Iterator, Mapping
from typing import Any

from jupyter_amltrain.schema.job import looks_secret

#: Parts of a value that are looked at.
_MAX_PARTS = 50_000
#: Longest text that is compared: keys are short, and a text of a book has no end.
_MAX_TEXT = 8_192
#: Modules whose objects sign in somewhere.
_CREDENTIAL_MODULES = (
    "azure.identity", "azure.core.credentials", "azure.ai.ml", "azure.storage", "azure.keyvault", "msal", "boto3",
    "botocore", "google.auth", "google.oauth2", "google.cloud", "googleapiclient", "openai", "anthropic", "cohere",
    "huggingface_hub.hf_api", "huggingface_hub.inference", "paramiko", "asyncssh", "keyring", "sqlalchemy.engine",
    "psycopg", "psycopg2", "pymysql", "pyodbc", "snowflake", "pymongo", "redis", "kaggle", "tweepy", "slack_sdk",
    "stripe", "databricks", "jwt", "cryptography.hazmat",
)  # fmt: skip
_SECRET_TYPES = frozenset({"SecretStr", "SecretBytes", "_Environ"})
_LEAVES = (int, float, complex, bool, type(None), types.ModuleType, types.CodeType, range, slice)


def secret_in(name: str, value: Any) -> str:
    """Return what makes a value confidential, for a message without the value; empty if nothing does."""
    seen: set[int] = set()
    stack: list[tuple[str, str, Any]] = [("", name, value)]
    for _ in range(_MAX_PARTS):
        if not stack:
            break
        place, key, one = stack.pop()
        # Not isinstance: it reads an attribute of the object, which may run code or raise.
        if issubclass(type(one), _LEAVES) or id(one) in seen:
            continue
        if (kind := _credential_type(one)) is not None:
            return f"holds credentials ({kind}{f' in {place}' if place else ''})"
        if issubclass(type(one), str | bytes | bytearray):
            text = one[:_MAX_TEXT] if isinstance(one, str) else bytes(one[:_MAX_TEXT]).decode("latin-1")
            if looks_secret(key, text, env="environ" in place):
                return f"looks like a secret{f' ({place})' if place else ''}"
            continue
        seen.add(id(one))
        stack += _safe_parts(name, place, key, one)
    return ""


def _safe_parts(name: str, place: str, key: str, value: Any) -> list[tuple[str, str, Any]]:
    try:
        return [(f"{place or name}{step}" if step else place, inner, part) for step, inner, part in _parts(key, value)]
    except Exception:  # objects of others can raise anything
        return []


def _credential_type(value: Any) -> str | None:
    kind = type(value)
    module = str(getattr(kind, "__module__", ""))
    if kind.__name__ in _SECRET_TYPES or any(
        module == one or module.startswith(f"{one}.") for one in _CREDENTIAL_MODULES
    ):
        return kind.__name__
    if issubclass(kind, type | types.FunctionType):
        return None
    headers = getattr(value, "headers", None) if module.partition(".")[0] in ("requests", "httpx", "aiohttp") else None
    if headers is not None and (
        getattr(value, "auth", None) or "authorization" in {str(one).lower() for one in headers}
    ):
        return kind.__name__
    return None


def _parts(key: str, value: Any) -> Iterator[tuple[str, str, Any]]:
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
    elif isinstance(value, list | tuple | set | frozenset):
        yield from (("", key, part) for part in list(value))
        if type(value) in (list, tuple, set, frozenset):
            return
    elif isinstance(value, functools.partial):
        yield "", key, value.args
        yield "", key, value.keywords
    elif isinstance(value, types.FunctionType):
        if value.__closure__:
            for inner, cell in zip(value.__code__.co_freevars, value.__closure__, strict=False):
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
    return repr(key)[:40] if isinstance(key, str | int) else type(key).__name__


def _large() -> tuple[type, ...]:
    """Return types of numbers and tables, whose parts are not looked at one by one."""
    names = ("numpy:ndarray", "pandas:DataFrame", "pandas:Series", "pandas:Index", "torch:Tensor", "polars:DataFrame",
             "polars:Series", "pyarrow:Table")  # fmt: skip
    found = (getattr(sys.modules.get(one.partition(":")[0]), one.partition(":")[2], None) for one in names)
    return tuple(kind for kind in found if isinstance(kind, type)) + (os.PathLike,)
