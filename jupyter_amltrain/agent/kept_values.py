"""Keeps what a cell binds as files of its run, for ``run.result("model")`` of names that no ``--out`` names.

The module travels alone, as ``amltrain_kept.py`` among the hooks of a job, so it imports only the standard library and
other hooks. Nothing that goes wrong here may change how the script ends.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False  # most scripts end sooner than these modules are imported
if TYPE_CHECKING:
    from typing import Any, Collection, Dict, Iterator, List, Mapping, Sequence, Set

#: Name of the value of ``--out`` that has the nodes, and with ``.values`` of the folder with their files.
NAME = "_amltrain_kept"
#: Variable with the names of a job's secrets, separated by commas.
SECRETS = "AMLTRAIN_SECRETS"
#: Bytes that all of a run's values may have together, and the part of the free space of the disk.
MAX_BYTES, _FREE_PART = 256 << 20, 0.01
#: Bytes of a value in the file that names all, which is read at once: of its texts, and with all its parts.
_INLINE_BYTES, _MAX_NODE_BYTES = 1024, 4096
#: Seconds that writing may take: a value's own code can wait for ever.
_MAX_SECONDS = 60
#: Packages whose objects are drawn: the pictures of a run have them already.
_DRAWN = frozenset({"matplotlib"})
#: Types that a method or a function hardly ever changes; writing a large one again would cost more than it is worth.
_DATA = ("numpy:ndarray", "pandas:DataFrame", "pandas:Series", "pandas:Index", "polars:DataFrame", "polars:Series",
         "torch:Tensor", "pyarrow:Table")  # fmt: skip


def keep(bound: Sequence[str], used: Sequence[str] = (), known: Collection[str] = (), exact: bool = False) -> None:
    """Write the values of variables of the script, and the file that names them.

    Parameters
    ----------
    bound
        Variables that the script binds or assigns to, the newest first.
    used
        Variables of the notebook that it may have changed by a method or a function.
    known
        Names of ``__main__`` that the reader has, too.
    exact
        Whether the reader trusts pickles, which are whole and fast; otherwise the forms of values come first.
    """
    folder = os.environ.get("AML_OUTPUT_DIR", "")
    if not folder or os.path.basename(folder).startswith("rank-"):  # of a distributed run, rank 0 keeps
        return
    try:
        variables = vars(sys.modules["__main__"])
        found = {name: variables[name] for name in bound if _is_value(variables.get(name))}
        found.update((name, variables[name]) for name in used if _may_have_changed(variables.get(name)))
        numbers = {name: value for name, value in found.items() if _is_number(value)}
        nodes: Dict[str, Any] = {name: {"as": "json", "value": value} for name, value in numbers.items()}
        reasons: Dict[str, str] = {}
        if len(found) > len(numbers):
            keeper = _Keeper(folder, known, exact, nodes)
            try:
                with _Deadline():
                    keeper.add({name: value for name, value in found.items() if name not in numbers})
            except _TooSlow:  # what is written stays
                pass
            reasons = keeper.reasons
        _finish(folder, {name: nodes[name] for name in found if name in nodes}, reasons)
    except Exception:  # for example no space is left
        pass


def _is_number(value: Any) -> bool:
    """Whether a value is its own JSON, and no secret."""
    return type(value) in (bool, int) or (type(value) is float and value - value == 0)


def _finish(folder: str, nodes: Mapping[str, Any], reasons: Mapping[str, str]) -> None:
    """Write the file that names the values."""
    import json

    record = {"amltrain": 1, "name": NAME, "value": {"nodes": nodes, "left": reasons}}
    path = os.path.join(folder, NAME + ".json")
    part = "%s.%d.part" % (path, os.getpid())
    os.makedirs(folder, exist_ok=True)
    with open(part, "w", encoding="utf-8") as file:
        json.dump(record, file)
    os.replace(part, path)


class _Keeper:
    """Writes values, and adds their nodes to `nodes`."""

    def __init__(self, folder: str, known: Collection[str], exact: bool, nodes: Dict[str, Any]) -> None:
        import shutil

        self._known, self._exact, self._nodes = known, exact, nodes
        self._files = os.path.join(folder, NAME + ".values")
        self._values: Any = __import__("amltrain_values")
        vars(self._values)["MAX_INLINE_BYTES"] = _INLINE_BYTES
        os.makedirs(folder, exist_ok=True)
        self._left = min(MAX_BYTES, int(shutil.disk_usage(folder).free * _FREE_PART))
        self.reasons: Dict[str, str] = {}

    def add(self, found: Dict[str, Any]) -> None:
        """Write what can be kept, until there is no more room."""
        shared: Any = __import__("amltrain_shared")
        secrets: Any = __import__("amltrain_secrets")
        hidden = _secret_texts(secrets)
        walk = shared.Walk()
        for name in list(found):
            if secrets.secret_in(name, found[name], hidden):
                self.reasons[name] = "it looks like a secret"
                del found[name]
                continue
            walk.add(name, found[name])
        for name in [name for name in found if not _DRAWN.isdisjoint(walk.packages[name])]:
            self.reasons[name] = "figures are among the run's pictures"
            del found[name]
        groups = {name: group for group in shared.grouped(walk, found) for name in group}
        for name, value in found.items():
            if name not in self._nodes and name not in self.reasons:
                self._write(groups.get(name, {name: value}))

    def _write(self, group: Mapping[str, Any]) -> None:
        """Write values that share objects."""
        import json

        values = self._values
        name = next(iter(group))
        size = sum(map(values.memory_of, group.values()))
        reason = ""
        nodes: Dict[str, Any] = {}
        if size > self._left:
            self._too_large(name, group[name], size)
            reason = "it is too large"
        else:
            try:
                nodes = self._apart(group)
                if not nodes or len(json.dumps(nodes)) > _MAX_NODE_BYTES:
                    nodes = values.write_graph(dict(group), self._files, self._known, self._left)
            except values.CannotWrite as error:
                reason = str(error)
        self._nodes.update(nodes)
        if reason:
            self.reasons.update(dict.fromkeys(group, reason))
            return
        self._left -= sum({file["file"]: int(file["bytes"]) for file in _all_files(values, nodes)}.values())

    def _apart(self, group: Mapping[str, Any]) -> Dict[str, Any]:
        """Write values one by one; return nothing if they must be written together."""
        write, is_one = self._values.write, len(group) == 1
        if self._exact and not is_one:
            return {}
        try:
            return {
                name: write(value, self._files, is_one, self._known, self._exact, self._left)
                for name, value in group.items()
            }
        except self._values.CannotWrite:  # too many parts, or no form
            return {}

    def _too_large(self, name: str, value: Any, size: int) -> None:
        """Say while the run is alive that a value will be gone with it."""
        text = "%s, %d MiB" % (type(value).__name__, size >> 20)
        print("amltrain: %s (%s) is too large to be kept: to get it, --out %s" % (name, text, name), file=sys.stderr)


def _all_files(values: Any, nodes: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for node in nodes.values():
        yield from values.files_of(node)


def _is_value(value: Any) -> bool:
    """Whether a variable holds data; the text of a run has functions and classes."""
    kinds = (type(sys), type(_is_value), type(len), type)  # modules, functions, classes
    return value is not None and not issubclass(type(value), kinds)


def _may_have_changed(value: Any) -> bool:
    """Whether a method or a function may have changed a value: a model and not a number, a text or an array."""
    kind = type(value)
    data: List[type] = [str, bytes, int, float, complex, tuple, frozenset, range]
    for one in _DATA:
        module, _, name = one.partition(":")
        found = getattr(sys.modules.get(module), name, None)
        data += [found] if isinstance(found, type) else []
    return _is_value(value) and not issubclass(kind, tuple(data))


def _secret_texts(secrets: Any) -> Set[str]:
    """Return the values of environment variables that are secret."""
    named = os.environ.get(SECRETS, "").split(",")
    return {
        text
        for name, text in os.environ.items()
        if text and (name in named or secrets.looks_secret(name, text, env=True))
    }


class _TooSlow(Exception):
    """A value's own code takes too long."""


class _Deadline:
    """Ends the block with an exception when it takes too long, where Python can be interrupted."""

    def __enter__(self) -> None:
        import signal
        import threading

        self._signal: Any = signal
        self._old: Any = None
        if threading.current_thread() is threading.main_thread() and hasattr(signal, "setitimer"):
            self._old = signal.signal(signal.SIGALRM, self._end)
            signal.setitimer(signal.ITIMER_REAL, _MAX_SECONDS, 5)  # each further value has less

    def _end(self, number: int, frame: Any) -> None:
        raise _TooSlow("it takes longer than %d s" % _MAX_SECONDS)

    def __exit__(self, *error: Any) -> None:
        if self._old is not None:
            self._signal.setitimer(self._signal.ITIMER_REAL, 0)
            self._signal.signal(self._signal.SIGALRM, self._old)
