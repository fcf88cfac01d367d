"""Named compute targets in ``targets.json``; ``local`` always exists. The file contains no secrets."""

from __future__ import annotations

import contextlib
import difflib
import functools
import operator
from collections.abc import Iterator
from typing import Any

import msgspec

from jupyter_amltrain.errors import CommandError, StateError, UnknownTarget
from jupyter_amltrain.schema.target import ComputeTarget, ForeignTarget, LocalTarget
from jupyter_amltrain.state_dir import SCHEMA, StateRoot, check_schema, locked, read_json, write_json

LOCAL = LocalTarget(name="local")
#: Max notebooks whose choice of a target is kept.
MAX_NOTEBOOKS = 500
#: Maximum number of prices that are noted for one notebook.
MAX_PRICES = 50
#: Max deleted targets kept for their run history.
MAX_RETIRED_TARGETS = 20


class TargetFile:
    """The user's targets, shared by every kernel, and the choice of this notebook.

    Parameters
    ----------
    notebook
        Path of the notebook, whose choice its next kernel finds. Without it the choice lasts as long as this object.
    """

    def __init__(self, root: StateRoot, kinds: tuple[type[ComputeTarget], ...], notebook: str = "") -> None:
        self._path = root.targets
        self._kinds = kinds
        self._notebook = notebook
        self._choice = ""  #: without a notebook
        self._billed: set[str] = set()  #: billed targets that this kernel has submitted to, with the price of a run

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {"schema": SCHEMA, "current": LOCAL.name, "targets": {}}
        value = read_json(self._path)
        check_schema(value, self._path)
        named = [value.get(key, {}) for key in ("targets", "past", "notebooks", "billed")]
        if not all(isinstance(part, dict) for part in named) or not isinstance(value.get("current", ""), str):
            raise StateError(
                f"{self._path} is damaged: its targets are not an object, or the current target is not a name.",
                hint="Delete the file, or restore a backup.",
            )
        return dict(value)

    def all(self) -> list[ComputeTarget]:
        """Return all targets, ``local`` first."""
        return [LOCAL, *(t for t in self._listed("targets") if t.name != LOCAL.name)]

    def retired(self) -> list[ComputeTarget]:
        """Return deleted targets whose runs their service has retired."""
        return self._listed("past")

    def _listed(self, key: str) -> list[ComputeTarget]:
        kinds: Any = functools.reduce(operator.or_, self._kinds)
        tags = {kind.__struct_config__.tag for kind in self._kinds}
        named = self._read().get(key, {})
        try:
            return [
                msgspec.convert(value, kinds) if not isinstance(value, dict) or value.get("kind") in tags
                # of a package that is not installed, or of a newer version: it must not hide the others
                else ForeignTarget(name=name, stored=value)
                for name, value in named.items()
            ]  # fmt: skip
        except msgspec.ValidationError as error:
            raise StateError(
                f"{self._path} contains a target that this version cannot read: {error}.",
                hint="Upgrade jupyter_amltrain, or remove that entry.",
            ) from error

    def get(self, name: str) -> ComputeTarget:
        """Return the target of this name.

        Raises
        ------
        UnknownTarget
            The target does not exist; the message names close matches.
        """
        targets = {t.name: t for t in self.all()}
        if name in targets:
            return targets[name]
        if any(target.name == name for target in self.retired()):
            raise UnknownTarget(
                f"{name!r} was deleted; its runs can still be read.",
                hint=f"They are in %aml_runs list --target {name}. Existing targets: {', '.join(targets)}.",
            )
        near = difflib.get_close_matches(name, targets, 3, 0.5)
        guess = f"Did you mean {' or '.join(near)}?" if near else f"Existing targets: {', '.join(targets)}."
        raise UnknownTarget(f"No compute target named {name!r}.", hint=f"{guess} %aml_compute lists them.")

    def known(self, name: str) -> ComputeTarget:
        """Return the target of this name, which may be a deleted one whose runs are to be read.

        Raises
        ------
        UnknownTarget
            See :meth:`get`.
        """
        return next((target for target in self.retired() if target.name == name), None) or self.get(name)

    @property
    def current(self) -> str:
        """Name of the target in use: this notebook's choice, else the user's default."""
        value = self._read()
        chosen = value.get("notebooks", {}).get(self._notebook, "") if self._notebook else self._choice
        return chosen if chosen and isinstance(chosen, str) else self._default(value)

    @property
    def default(self) -> str:
        """Name of the target of notebooks that have chosen none."""
        return self._default(self._read())

    def _default(self, value: dict[str, Any]) -> str:
        return str(value.get("current", LOCAL.name))

    def use(self, name: str, *, default: bool = False) -> None:
        """Make `name` the target of this notebook.

        Parameters
        ----------
        default
            Make it the target of all notebooks that have chosen none; this one then has chosen none as well.
        """
        with locked(self._path.with_suffix(".lock")):
            self.get(name)
            if not default and not self._notebook:
                self._choice = name
                return
            value = self._read()
            notebooks = dict(value.get("notebooks", {}))
            notebooks.pop(self._notebook, None)
            if default:
                self._choice, value["current"] = "", name
            else:
                notebooks[self._notebook] = name
            if notebooks or "notebooks" in value:
                value["notebooks"] = dict(list(notebooks.items())[-MAX_NOTEBOOKS:])
            write_json(self._path, value)

    def note_billed(self, name: str, amount: str) -> bool:
        """Note that this notebook submits to a billed target; return whether it is for the first time at this price."""
        entry = f"{name} {amount}"
        if entry in self._billed:
            return False
        self._billed.add(entry)
        if not self._notebook:
            return True
        with locked(self._path.with_suffix(".lock")):
            value = self._read()
            billed = dict(value.get("billed", {}))
            names = billed.pop(self._notebook, [])
            names = names if isinstance(names, list) else []
            if entry in names:
                return False
            billed[self._notebook] = [*names, entry][-MAX_PRICES:]
            write_json(self._path, {**value, "billed": dict(list(billed.items())[-MAX_NOTEBOOKS:])})
        return True

    def read(self) -> tuple[list[ComputeTarget], str, list[ComputeTarget]]:
        """Return all targets, the name of the current one, which exists, and the deleted ones."""
        result, current = self.all(), self.current
        return result, current if any(target.name == current for target in result) else LOCAL.name, self.retired()

    def mark(self) -> tuple[int, int] | None:
        """Return a value that differs after every change; ``None`` without a file."""
        try:
            result = self._path.stat()
        except OSError:
            return None
        return result.st_mtime_ns, result.st_ino

    def add(self, target: ComputeTarget) -> None:
        """Store a new target; does nothing if it exists with the same fields.

        Raises
        ------
        CommandError
            Another target has this name.
        """
        with self._changing() as value:
            named = value["targets"]
            if target.name == LOCAL.name or named.get(target.name, stored_fields(target)) != stored_fields(target):
                raise CommandError(f"A target {target.name!r} already exists.", hint="Choose another name.")
            named[target.name] = stored_fields(target)
            value["past"].pop(target.name, None)

    def replace(self, target: ComputeTarget) -> None:
        """Store changed fields of a target; a deleted target stays deleted."""
        with self._changing() as value:
            if target.name in value["targets"]:
                value["targets"][target.name] = stored_fields(target)

    def remove(self, name: str, *, past: bool = False) -> None:
        """Remove a target; ``local`` replaces it as the default and as the choice of notebooks.

        Parameters
        ----------
        past
            Remember the target for its runs, which are retired; otherwise forget it. A target that another kernel
            has already removed this way stays remembered.
        """
        with self._changing() as value:
            fields = self._pop(value, name)
            if not past:
                value["past"].pop(name, None)
            elif fields is not None:
                _remember(value, name, fields)

    def restore(self, target: ComputeTarget) -> None:
        """Remove the target of this name, and remember `target`, which had the name before."""
        with self._changing() as value:
            self._pop(value, target.name)
            _remember(value, target.name, stored_fields(target))

    def _pop(self, value: dict[str, Any], name: str) -> Any:
        if self._choice == name:
            self._choice = LOCAL.name
        self._billed = {entry for entry in self._billed if not _is_of(entry, name)}
        return _pop_target(value, name)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[dict[str, Any]]:
        with locked(self._path.with_suffix(".lock")):
            value = self._read()
            value["targets"], value["past"] = dict(value.get("targets", {})), dict(value.get("past", {}))
            yield value
            if not value["past"]:
                del value["past"]
            write_json(self._path, value)


def _pop_target(value: dict[str, Any], name: str) -> Any:
    if value.get("current") == name:
        value["current"] = LOCAL.name
    # Not the user's default, which may be billed.
    notebooks = value.get("notebooks", {}).items()
    if any(chosen == name for _, chosen in notebooks):
        value["notebooks"] = {path: LOCAL.name if chosen == name else chosen for path, chosen in notebooks}
    for path, names in list(value.get("billed", {}).items()):
        if isinstance(names, list):  # another target of this name has another price
            value["billed"] = {**value["billed"], path: [entry for entry in names if not _is_of(entry, name)]}
    return value["targets"].pop(name, None)


def _is_of(entry: object, name: str) -> bool:
    """Return whether a noted price is of a target."""
    return str(entry).partition(" ")[0] == name


def _remember(value: dict[str, Any], name: str, fields: Any) -> None:
    retired = value["past"]
    retired.pop(name, None)
    retired[name] = fields
    value["past"] = dict(list(retired.items())[-MAX_RETIRED_TARGETS:])


def stored_fields(target: ComputeTarget) -> dict[str, Any]:
    """Return a target as JSON: its kind and its fields."""
    fields: dict[str, Any] = msgspec.to_builtins(target)
    return fields
