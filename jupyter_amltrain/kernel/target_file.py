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
from jupyter_amltrain.schema.target import ComputeTarget, LocalTarget
from jupyter_amltrain.state_dir import SCHEMA, StateRoot, check_schema, locked, read_json, write_json

LOCAL = LocalTarget(name="local")
#: Max deleted targets kept for their run history.
MAX_RETIRED_TARGETS = 20


class TargetFile:
    """The user's targets, shared by every kernel."""

    def __init__(self, root: StateRoot, kinds: tuple[type[ComputeTarget], ...]) -> None:
        self._path = root.targets
        self._kinds = kinds

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {"schema": SCHEMA, "current": LOCAL.name, "targets": {}}
        value = read_json(self._path)
        check_schema(value, self._path)
        named = [value.get(key, {}) for key in ("targets", "past")]
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
        named = self._read().get(key, {})
        try:
            return [msgspec.convert(value, kinds) for value in named.values()]
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
        """Name of the default target."""
        return str(self._read().get("current", LOCAL.name))

    def use(self, name: str) -> None:
        """Make `name` the current target of every kernel."""
        with locked(self._path.with_suffix(".lock")):
            self.get(name)
            write_json(self._path, {**self._read(), "current": name})

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
        """Remove a target; if it was the current one, ``local`` becomes the current one.

        Parameters
        ----------
        past
            Remember the target for its runs, which are retired; otherwise forget it. A target that another kernel
            has already removed this way stays remembered.
        """
        with self._changing() as value:
            fields = _pop_target(value, name)
            if not past:
                value["past"].pop(name, None)
            elif fields is not None:
                _remember(value, name, fields)

    def restore(self, target: ComputeTarget) -> None:
        """Remove the target of this name, and remember `target`, which had the name before."""
        with self._changing() as value:
            _pop_target(value, target.name)
            _remember(value, target.name, stored_fields(target))

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
    return value["targets"].pop(name, None)


def _remember(value: dict[str, Any], name: str, fields: Any) -> None:
    retired = value["past"]
    retired.pop(name, None)
    retired[name] = fields
    value["past"] = dict(list(retired.items())[-MAX_RETIRED_TARGETS:])


def stored_fields(target: ComputeTarget) -> dict[str, Any]:
    """Return a target as JSON: its kind and its fields."""
    fields: dict[str, Any] = msgspec.to_builtins(target)
    return fields
