"""Fingerprints of values, to compare what a kernel has with what a run has kept, in any process.

Two values have one fingerprint if they are of the same types and have equal parts; addresses do not count. The text of
this module is executed in a kernel, so it imports no module of this project.
"""

import hashlib
import json
import re
import types
from typing import Any

#: Parts that are looked at.
MAX_PARTS = 300_000
_ADDRESS = re.compile(r"0x[0-9a-f]{6,}")


def fingerprint(value: Any) -> str:
    """Return a text that is equal for equal values."""
    walk = Walk()
    try:
        walk.add(value)
    except Exception as error:  # nested too deeply, or its own code raises
        return type(error).__name__
    return walk.digest.hexdigest()


class Walk:
    """Adds a value and its parts to a digest, in an order that does not depend on the process."""

    def __init__(self) -> None:
        self.digest = hashlib.sha256()
        self.left = MAX_PARTS
        self._seen: dict[int, int] = {}
        self._alive: list[Any] = []

    def note(self, *texts: object) -> None:
        for text in texts:
            self.digest.update(repr(text).encode() + b"\0")

    def add(self, value: Any) -> None:
        self.left -= 1
        if self.left < 0:
            return
        kind = type(value)
        if value is None or kind in (bool, int, float, complex, str, bytes, range, slice, type(...)):
            self.note(kind.__name__, value)
            return
        if id(value) in self._seen:  # which one it is, for what refers to itself
            self.note("seen", self._seen[id(value)])
            return
        self._seen[id(value)] = len(self._seen)
        self._alive.append(value)  # its id stays its own
        self.note(kind.__qualname__)
        if isinstance(value, (type, types.FunctionType, types.BuiltinFunctionType, types.ModuleType)):
            self.note(getattr(value, "__qualname__", getattr(value, "__name__", "")))
        elif kind in (list, tuple):
            for one in value:
                self.add(one)
        elif kind in (set, frozenset):
            self.note(*sorted(map(fingerprint, value)))
        elif isinstance(value, dict):  # of a Bunch, pickles keep the items only
            keys = {fingerprint(key): key for key in value}
            for text in sorted(keys):  # equal mappings may have another order
                self.note(text)
                self.add(value[keys[text]])
        else:
            self._add_object(value, kind.__module__.partition(".")[0], kind.__name__)

    def _add_object(self, value: Any, package: str, name: str) -> None:
        if package == "numpy" and hasattr(value, "dtype"):
            self.note(value.dtype.str, value.shape)
            self.add(value.tolist()) if value.dtype.hasobject else self.digest.update(value.tobytes())
        elif package == "torch" and hasattr(value, "untyped_storage"):
            self.note(str(value.dtype), value.requires_grad)
            self.add(value.detach().cpu().to_dense().float().numpy())
        elif package == "pandas" and name in ("DataFrame", "Series"):
            self.note(list(map(str, value.columns)) if name == "DataFrame" else value.name)
            self.note(str(value.dtypes), value.index.tolist(), value.to_numpy().tolist())
        elif package == "pandas" and hasattr(value, "tolist"):
            self.note(str(value), value.tolist())
        elif package == "polars" and hasattr(value, "to_dicts" if name == "DataFrame" else "to_list"):
            self.note(value.to_dicts() if name == "DataFrame" else value.to_list())
        elif package == "scipy" and hasattr(value, "tocoo"):
            self.add(value.toarray())
        elif package == "keras" and hasattr(value, "get_weights"):  # its files have times, and its names are counted
            self.add(value.get_weights())
        elif package == "plotly" and hasattr(value, "to_json"):  # its pickles have another order
            self.note(json.dumps(json.loads(value.to_json()), sort_keys=True))
        else:
            self._add_state(value)

    def _add_state(self, value: Any) -> None:
        try:
            parts = value.__reduce_ex__(4)
        except Exception:  # it cannot be pickled
            self.note(_ADDRESS.sub("", repr(value)))
            return
        if isinstance(parts, str):
            self.note(parts)
            return
        for part in parts[:3]:
            self.add(part)
        for items in parts[3:5]:
            self.add(list(items or ()))
