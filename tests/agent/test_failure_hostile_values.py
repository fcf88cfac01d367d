"""Hostile values in the frames of a failure: nothing of theirs is called, nothing leaks, and reading ends in time."""

from __future__ import annotations

import json
import weakref
from collections import OrderedDict, defaultdict
from typing import Any

import pytest

from jupyter_amltrain.agent.failures.failure_hook import MAX_BYTES
from jupyter_amltrain.agent.failures.value_facts import HIDDEN
from tests.failed_lines import failed

#: Special methods that ways of looking at an object call.
METHODS = (
    "__repr__", "__str__", "__format__", "__bytes__", "__len__", "__length_hint__", "__iter__", "__next__",
    "__getitem__", "__contains__", "__bool__", "__eq__", "__ne__", "__lt__", "__hash__", "__dir__", "__getattr__",
    "__getattribute__", "__instancecheck__", "__subclasscheck__", "__call__", "__index__", "__int__", "__float__",
    "__reduce__", "__reduce_ex__", "__sizeof__", "__array__", "__array_interface__", "__dataframe__", "__fspath__",
    "__enter__", "__exit__", "__get__", "__copy__", "__deepcopy__", "__await__", "__torch_function__", "__reversed__",
    "keys", "items", "values", "shape", "dtype", "device", "columns", "name", "get", "to_numpy", "_repr_html_",
)  # fmt: skip

CALLED: list[str] = []


def trap(name: str) -> Any:
    def method(*args: Any, **options: Any) -> Any:
        CALLED.append(name)
        raise RuntimeError(f"{name} was called")

    return method


class Meta(type):
    """A metaclass that is asked nothing."""

    __getattribute__ = trap("metaclass.__getattribute__")
    __instancecheck__ = trap("metaclass.__instancecheck__")
    __subclasscheck__ = trap("metaclass.__subclasscheck__")
    __repr__ = trap("metaclass.__repr__")
    __eq__ = trap("metaclass.__eq__")
    __hash__ = type.__hash__
    __name__ = property(trap("metaclass.__name__"))
    __mro__ = property(trap("metaclass.__mro__"))


def hostile(*bases: type, metaclass: Any = type, **more: Any) -> Any:
    """Return a class all of whose special methods are traps."""
    names = {name: trap(f"{bases[0].__name__ if bases else 'object'}.{name}") for name in METHODS}
    for name in ("__class__", "__dict__", "__doc__"):
        names[name] = property(trap(name))
    return metaclass("Hostile", bases, {**names, **more})


def half_built() -> Any:
    """Return a tensor-like object whose ``__init__`` has not run."""
    kind: Any = type("Half", (), {"__getattr__": trap("__getattr__"), "__init__": trap("__init__")})
    return kind.__new__(kind)


def hostile_key() -> Any:
    """Return a text that is equal to nothing without code of its own."""
    return type("Key", (str,), {"__eq__": trap("key.__eq__"), "__hash__": lambda self: hash("v")})("v")


def plain_classes() -> list[Any]:
    kinds: list[Any] = [object, str, bytes, int, float, list, tuple, dict, set, frozenset, OrderedDict, Exception]
    return [kind.__new__(hostile(kind)) for kind in kinds]


def values() -> dict[str, Any]:
    found = {f"of_{index}": value for index, value in enumerate(plain_classes())}
    found["of_class"] = hostile()
    found["of_metaclass"] = object.__new__(hostile(metaclass=Meta))
    found["of_metaclass_class"] = hostile(metaclass=Meta)
    found["half"] = half_built()
    found["dict_with_key"] = {hostile_key(): 1, "b": object.__new__(hostile())}
    found["default"] = defaultdict(trap("default_factory"), {"a": 1})
    found["deep"] = [[[[[object.__new__(hostile())]]]]]
    found["proxy"] = weakref.proxy(found["half"])
    found["huge"] = 1 << 4_000_000
    found["frame_names"] = {index: index for index in range(1_000_000)}
    found["long"] = "x" * 50_000_000
    cycle: list[Any] = []
    cycle.append(cycle)
    found["cycle"] = cycle
    return found


def test_hostile_values_are_named_and_nothing_of_theirs_is_called() -> None:
    CALLED.clear()
    names = values()
    code = f"def f({', '.join(names)}):\n    return [{', '.join(names)}, 1 / 0]\nf({', '.join(names)})"
    found = failed(code, **names)
    text = json.dumps(found.content)
    assert CALLED == []
    assert {value["name"] for value in found.frames[0]["values"]} <= names.keys()
    assert len(found.frames[0]["values"]) >= 12 and "Hostile" in text and "4000001 bits" not in text
    assert len(text) < MAX_BYTES and found.seconds < 1


@pytest.mark.thorough
@pytest.mark.parametrize("name", list(values()))
def test_hostile_value_alone_is_shown_with_its_type(name: str) -> None:
    CALLED.clear()
    found = failed("def f(v):\n    return v if 1 / 0 else v.x\nf(v)", v=values()[name])
    assert CALLED == [] and found.seconds < 1
    assert "v" in found.shown() or name in ("of_class", "of_metaclass_class")  # a definition, not data


def test_hostile_exception_shows_its_frames() -> None:
    CALLED.clear()
    error = hostile(Exception, __init__=Exception.__init__)("no")
    found = failed("def f(n):\n    raise error\nf(3)", error=error)
    assert CALLED == [] and found.content["errors"][0]["text"] == "no" and found.shown()["n"] == "3"


def test_names_of_a_class_body_of_its_own_kind_are_not_read() -> None:
    CALLED.clear()
    namespace = hostile(dict, __setitem__=dict.__setitem__, __getitem__=dict.__getitem__)
    code = (
        "class Meta(type):\n    @classmethod\n    def __prepare__(*a): return namespace()\n"
        "class A(metaclass=Meta):\n    n = 0\n    1 / n"
    )
    assert failed(code, namespace=namespace).content["errors"] and CALLED == []


SECRETS = {
    "password": "hunter2",
    "api_key": "abcdef",
    "cfg": {"lr": 0.1, "db_password": "hunter2"},
    "nested": [{"token": "ghp_abcdefghijklmnopqrstuvwxyz0123456789"}],
    "environment": {"HOME": "/root", "WANDB_TOKEN": "hunter2"},
    "url": "postgres://me:hunter2@db/x",
    "header": ("Authorization", "Bearer abcdefghijklmnopqrstuvwxyz"),
    "text": "a line with the value of a variable: s3cr3t-value!",
    "keys": {"s3cr3t-value!": 1},
    "data": b"key=s3cr3t-value!",
    "pin_password": 12345678,
}  # fmt: skip


class Client:
    """An object with a secret."""

    def __init__(self) -> None:
        self.user, self.password = "me", "hunter2"


def test_secrets_are_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "s3cr3t-value!")
    names = {**SECRETS, "client": Client()}
    lines = [f"def f({', '.join(names)}):", f"    return [{', '.join(names)}, 1 / 0]", f"f({', '.join(names)})"]
    found = failed("\n".join(lines), **names)
    text = json.dumps(found.content)
    assert not [
        secret for secret in ("hunter2", "ghp_", "Bearer abc", "s3cr3t", "abcdef", "12345678") if secret in text
    ]
    assert found.shown()["password"] == HIDDEN and "'lr': 0.1" in found.shown()["cfg"] and "user 'me'" in text


def test_secret_in_a_message_or_line_is_not_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DEPLOY_TOKEN", "s3cr3t-value!")
    found = failed("n = 1\nraise ValueError('bad login with s3cr3t-value!', n)")
    assert "s3cr3t" not in json.dumps(found.content) and "n" in found.shown()


def test_reading_stops_when_its_time_is_over() -> None:
    numpy = pytest.importorskip("numpy")
    large = numpy.zeros(30_000_000)
    found = failed("1 / 0", **{f"a{index}": large for index in range(60)})
    assert found.seconds < 3  # 0.4 s on an idle machine
    assert sum(value["shape"] == [30_000_000] for value in found.frames[0]["values"]) >= 8


def test_large_values_fit_in_the_file() -> None:
    names = {f"name_{index}": [f"{index} {'é' * 200}"] * 50 for index in range(40)}
    code = "def f(n):\n    if n == 0: 1 / 0\n    {}\n    f(n - 1)\n"
    body = "\n    ".join(f"local_{index} = {'t' * 70!r} * {index + 1}" for index in range(40))
    found = failed(code.format(body) + "f(30)", **names)
    assert 2_000 < len(json.dumps(found.content)) < MAX_BYTES
