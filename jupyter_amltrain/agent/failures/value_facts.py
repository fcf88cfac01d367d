"""Facts about any value: its type and a short text, without a call of its own methods and without secrets.

The module travels alone, as ``amltrain_value_facts.py`` among the hooks of a job.
"""

from __future__ import annotations

import itertools
import os
import time
import types

TYPE_CHECKING = False
if TYPE_CHECKING or __package__:
    from .. import secret_values
    from . import array_facts, safe_access
else:
    import amltrain_array_facts as array_facts
    import amltrain_safe_access as safe_access
    import amltrain_secrets as secret_values

if TYPE_CHECKING:
    from typing import Any, Dict, Iterable, List, Optional, Sequence, Set, Tuple

    Facts = Dict[str, Any]
    Names = Tuple[str, ...]

#: What stands in place of a secret.
HIDDEN = "not shown: it looks like a secret"
#: Variable with the names of a job's secrets, separated by commas.
SECRETS = "AMLTRAIN_SECRETS"
#: Characters of a value's text, of a text in it, and of a text that is compared with secrets.
MAX_CHARS, _MAX_STRING, _MAX_COMPARED = 300, 80, 8192
#: Parts of a container or object that are shown, numbers of a list, and levels of parts.
_MAX_PARTS, _MAX_NUMBERS, _MAX_DEPTH = 4, 8, 2
#: Names that are searched for the parts of an object.
_MAX_SEARCHED = 200
#: Seconds that reading the numbers of arrays leaves for the types and shapes of the others.
_RESERVE_S = 0.15
#: Bits of a whole number that is written out.
_MAX_BITS = 256
_PLAIN = (bool, int, float, complex, type(None), type(Ellipsis), type(NotImplemented))
#: Types whose own text is short, and calls nothing else: module, name.
_TEXTS = (("decimal", "Decimal"), ("fractions", "Fraction"), ("uuid", "UUID"), ("datetime", "date"),
          ("datetime", "timedelta"), ("pathlib", "PosixPath"), ("pathlib", "PurePosixPath"), ("pathlib", "WindowsPath"),
          ("pathlib._local", "PosixPath"))  # fmt: skip
_FUNCTIONS = (types.FunctionType, types.BuiltinFunctionType, types.MethodType)


class OutOfTime(Exception):
    """The time for reading values is over."""


class FactReader:
    """Reads facts about values, for as long as there is time.

    Parameters
    ----------
    seconds
        For all values together.
    """

    def __init__(self, seconds: float) -> None:
        self._until = time.monotonic() + seconds
        self._hidden = _secret_texts()

    @property
    def time_left(self) -> float:
        """Seconds that are left."""
        return self._until - time.monotonic()

    def facts(self, name: str, value: Any, names: Names = (), depth: int = 0) -> Facts:
        """Return the facts about a value: ``type``, and of ``shape``, ``dtype``, ``device``, ``low``, ``high``,
        ``nan`` and ``text`` those that it has.

        Parameters
        ----------
        name
            Its name, by which a secret may be known.
        names
            Names of what contains it.
        """
        if self.time_left <= 0:
            raise OutOfTime
        names = (*names, name)
        try:
            facts = self._facts(value, names, depth)
        except OutOfTime:
            raise
        except Exception:  # changed by a thread meanwhile, nested too deeply, or a library that is half imported
            return {"type": safe_access.type_name(type(value))}
        text = facts.get("text", "")
        if text and self.is_secret(names, text):
            facts["text"] = HIDDEN
        return facts

    def _facts(self, value: Any, names: Names, depth: int) -> Facts:
        kind = type(value)
        facts = self._plain(value, kind, names)
        if facts is None:
            facts = array_facts.facts_of(value, self.time_left - _RESERVE_S)
        if facts is None:
            facts = self._container(value, kind, names, depth)
        if facts is None:
            facts = self._object(value, kind, names, depth)
        return facts

    def is_secret(self, names: Sequence[str], text: str) -> bool:
        """Whether a text, or a part of it, must not be kept."""
        text = text[:_MAX_COMPARED]
        looks = secret_values.looks_secret
        return any(secret in text for secret in self._hidden) or any(
            looks(one, text, env=one.isupper()) for one in dict.fromkeys(names)
        )

    def _plain(self, value: Any, kind: type, names: Names) -> Optional[Facts]:
        """Return the facts about a number, a text or another simple value."""
        name = safe_access.type_name(kind)
        if safe_access.is_any(kind, _PLAIN):
            if kind is int and value.bit_length() > _MAX_BITS:
                return {"type": name, "text": "%d bits" % value.bit_length()}
            return {"type": name, "text": repr(value)}
        for base in (str, bytes, bytearray):
            if safe_access.is_subtype(kind, base):
                return self._text(value, base, name, names)
        if kind is type or safe_access.is_subtype(kind, type):
            return {"type": "class", "text": safe_access.type_name(value)}
        if safe_access.is_any(kind, _FUNCTIONS):
            function = value.__func__ if kind is types.MethodType else value
            is_plain = safe_access.is_any(type(function), _FUNCTIONS[:2])
            return {"type": "function", "text": safe_access.text_of(function.__name__) if is_plain else ""}
        if safe_access.is_any(kind, (range, slice)):
            parts = (value.start, value.stop, value.step)
            return {
                "type": name,
                "text": repr(value) if all(safe_access.is_any(type(one), _PLAIN) for one in parts) else "",
            }
        if any(kind is safe_access.module_member(*known) for known in _TEXTS):
            return {"type": name, "text": _cut(str(value))}
        return None

    def _text(self, value: Any, base: type, name: str, names: Names) -> Facts:
        own: Any = base
        count = own.__len__(value)
        start = own.__getitem__(value, slice(0, _MAX_COMPARED))
        text = start if base is str else bytes(start).decode("latin-1")
        if self.is_secret(names, text):
            return {"type": name, "text": HIDDEN}
        shown = repr(start[:_MAX_STRING]) + (" … (%d %s)" % (count, "characters" if base is str else "bytes")) * (
            count > _MAX_STRING
        )
        return {"type": name, "text": shown}

    def _container(self, value: Any, kind: type, names: Names, depth: int) -> Optional[Facts]:
        """Return the facts about a list, a mapping or a set, and about subclasses of these."""
        base: Any = next(
            (one for one in (dict, list, tuple, set, frozenset) if safe_access.is_subtype(kind, one)), None
        )
        if base is None:
            deque = safe_access.module_member("collections", "deque")
            base = deque if kind is deque and deque is not None else None
        if base is None:
            return None
        count = base.__len__(value)
        facts: Facts = {"type": safe_access.type_name(kind), "shape": [count]}
        if depth >= _MAX_DEPTH:
            return facts
        if base is dict:
            pairs = list(safe_access.entries(value, _MAX_PARTS))
            keys = [self._key(key) for key, _ in pairs]
            parts = ["%s: %s" % (key, self._part(key, one, names, depth)) for key, (_, one) in zip(keys, pairs)]
            facts["text"] = _joined(parts, count, "{}")
            return facts
        fields = safe_access.class_names(kind, "_fields") if base is tuple and kind is not tuple else ()
        first = list(itertools.islice(base.__iter__(value), _MAX_NUMBERS))
        if not all(safe_access.is_any(type(one), _PLAIN) for one in first):
            first = first[:_MAX_PARTS]
        parts = [self._part("", one, names, depth) for one in first]
        if type(fields) is tuple and len(fields) == count:
            parts = ["%s=%s" % (safe_access.text_of(field), part) for field, part in zip(fields, parts)]
        facts["text"] = _joined(parts, count, "()" if base is tuple else "[]" if base is list else "{}")
        return facts

    def _key(self, key: Any) -> str:
        if type(key) is str:
            return HIDDEN if self.is_secret(("",), key) else repr(_cut(key, 40))
        if safe_access.is_any(type(key), _PLAIN):
            return _cut(repr(key), 40) if type(key) is not int or key.bit_length() <= _MAX_BITS else "int"
        if type(key) is tuple:
            return "(%s)" % ", ".join(self._key(one) for one in key[:_MAX_PARTS]) if len(key) < 9 else "tuple"
        return safe_access.type_name(type(key))

    def _part(self, name: str, value: Any, names: Names, depth: int) -> str:
        return _cut(_brief(self.facts(name, value, names, depth + 1)), 120)

    def _object(self, value: Any, kind: type, names: Names, depth: int) -> Facts:
        """Return the type of any other object, and some of the attributes that it stores."""
        facts: Facts = {"type": safe_access.type_name(kind)}
        held = safe_access.instance_names(value)
        if held is None or depth >= _MAX_DEPTH or _has_credentials(kind):
            return facts
        member = safe_access.entry(held, "_name_")
        if type(member) is str and safe_access.entry(held, "_value_") is not safe_access.MISSING:
            return {**facts, "text": _cut(member)}  # of an enumeration
        found = self._layers(held) or [
            (name, one)
            for name, one in safe_access.entries(held, _MAX_SEARCHED)
            if type(name) is str and not name.startswith("_") and name != "training" and not is_definition(one)
        ]
        parts = ["%s %s" % (_cut(name, 40), self._part(name, one, names, depth)) for name, one in found[:_MAX_PARTS]]
        facts["text"] = _joined(parts, len(found), "")
        return facts

    def _layers(self, held: Any) -> List[Tuple[str, Any]]:
        """Return parameters and parts of a module of PyTorch."""
        if safe_access.module_member("torch.nn", "Module") is None:
            return []
        return [
            (safe_access.text_of(name), one)
            for group in ("_parameters", "_modules")
            for name, one in safe_access.entries(safe_access.entry(held, group), _MAX_SEARCHED)
            if one is not None
        ]


def is_data(facts: Facts) -> bool:
    """Whether facts are about numbers: an array, a tensor, a table or a single number."""
    return "dtype" in facts or facts["type"] in ("DataFrame", "int", "float", "bool", "Size")


def summary(facts: Facts) -> str:
    """Return the facts about a value as one text: ``Tensor 32×784 float32 on cuda:0, 0 to 1, 3 NaN``."""
    kind, shape, text = facts["type"], facts.get("shape"), facts.get("text", "")
    if kind in _OWN_TEXT and text and not shape:
        return str(text)
    words = [kind]
    if shape is not None and "dtype" not in facts and kind != "DataFrame":
        words = ["%s of %d" % (kind, shape[0])]
    elif shape is not None:
        words.append("×".join("%d" % one for one in shape) or "of one number")
    words += [facts["dtype"]] if facts.get("dtype") else []
    words += ["on %s" % facts["device"]] if facts.get("device", "cpu") != "cpu" else []
    parts = [" ".join(words)]
    if facts.get("low"):
        parts.append("all %s" % facts["low"] if facts["low"] == facts["high"] else "%(low)s to %(high)s" % facts)
    parts += ["%d NaN" % facts["nan"]] if facts.get("nan") else []
    return ", ".join(parts) + (": %s" % text if text else "")


def _brief(facts: Facts) -> str:
    """Return the facts about a part of a value as a short text: ``Linear(weight 512×784, bias 512)``."""
    kind, text = facts["type"], facts.get("text", "")
    if "dtype" in facts:
        words = [] if kind == "Parameter" else [kind]
        words.append("×".join("%d" % one for one in facts.get("shape", ())) or "of one number")
        words += [] if kind == "Parameter" else [facts["dtype"]]
        words += ["on %s" % facts["device"]] if facts.get("device", "cpu") != "cpu" else []
        return " ".join(words) + (", %d NaN" % facts["nan"] if facts.get("nan") else "")
    if text and "shape" not in facts and kind not in _OWN_TEXT:
        return text if text == HIDDEN else "%s(%s)" % (kind, text)
    return summary(facts)


#: Types whose text says what they are.
_OWN_TEXT = frozenset(["int", "float", "bool", "complex", "str", "bytes", "NoneType", "ellipsis", "range", "slice"])


def _joined(parts: List[str], count: int, around: str) -> str:
    """Return parts as one text, with a sign for those that are left out."""
    text, used = "", 0
    for part in parts:
        if used and len(text) + len(part) > MAX_CHARS - 20:
            break
        text += ", " * (used > 0) + part
        used += 1
    text += ", …" * (used < count and used > 0)
    return around[:1] + text + around[1:]


def _cut(text: str, limit: int = MAX_CHARS) -> str:
    return text if len(text) <= limit else text[: limit - 1] + "…"


def is_definition(value: Any) -> bool:
    """Whether a value is a module, a function or a class."""
    return safe_access.is_any(type(value), _FUNCTIONS) or any(
        safe_access.is_subtype(type(value), base) for base in (type, types.ModuleType)
    )


def _has_credentials(kind: type) -> bool:
    """Whether objects of a type sign in somewhere."""
    module = safe_access.type_module(kind)
    known: Iterable[str] = secret_values.CREDENTIAL_MODULES
    return any(module == one or module.startswith(one + ".") for one in known)


def _secret_texts() -> Set[str]:
    """Return the values of environment variables that are secret; short ones stand in many texts."""
    named = os.environ.get(SECRETS, "").split(",")
    looks = secret_values.looks_secret
    return {
        text for name, text in os.environ.items() if len(text) >= 4 and (name in named or looks(name, text, env=True))
    }
