"""Named compute targets in ``targets.json``; ``local`` is always there. Never a secret."""

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
#: Targets that are gone and whose runs are not, that are remembered.
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
                f"{self._path} is damaged: its targets are not an object, or the one in use is no name.",
                hint="Remove the file, or put back a copy of it.",
            )
        return dict(value)

    def all(self) -> list[ComputeTarget]:
        """Every target, ``local`` first."""
        return [LOCAL, *(t for t in self._listed("targets") if t.name != LOCAL.name)]

    def past(self) -> list[ComputeTarget]:
        """Targets that are no more, and whose runs their service has kept."""
        return self._listed("past")

    def _listed(self, key: str) -> list[ComputeTarget]:
        kinds: Any = functools.reduce(operator.or_, self._kinds)
        named = self._read().get(key, {})
        try:
            return [msgspec.convert(value, kinds) for value in named.values()]
        except msgspec.ValidationError as error:
            raise StateError(
                f"{self._path} holds a target that this version cannot read: {error}.",
                hint="Upgrade jupyter_amltrain, or remove that entry.",
            ) from error

    def get(self, name: str) -> ComputeTarget:
        """The target of that name.

        Raises
        ------
        UnknownTarget
            Names the near matches.
        """
        targets = {t.name: t for t in self.all()}
        if name in targets:
            return targets[name]
        if any(target.name == name for target in self.past()):
            raise UnknownTarget(
                f"{name!r} was deleted; its runs can still be read.",
                hint=f"They are in %aml_runs list --target {name}. Targets that are there: {', '.join(targets)}.",
            )
        near = difflib.get_close_matches(name, targets, 3, 0.5)
        guess = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(targets)}."
        raise UnknownTarget(f"No compute target named {name!r}.", hint=f"{guess} %aml_compute lists them.")

    def known(self, name: str) -> ComputeTarget:
        """The target of that name, be it one that is no more: of runs that are to be read.

        Raises
        ------
        UnknownTarget
            See :meth:`get`.
        """
        return next((target for target in self.past() if target.name == name), None) or self.get(name)

    @property
    def current(self) -> str:
        """Name of the target that is used when none is given."""
        return str(self._read().get("current", LOCAL.name))

    def use(self, name: str) -> None:
        """Make `name` the target of every kernel from now on."""
        with locked(self._path.with_suffix(".lock")):
            self.get(name)
            write_json(self._path, {**self._read(), "current": name})

    def read(self) -> tuple[list[ComputeTarget], str, list[ComputeTarget]]:
        """Every target, the name of the current one, which is there, and those that are no more."""
        found, current = self.all(), self.current
        return found, current if any(target.name == current for target in found) else LOCAL.name, self.past()

    def mark(self) -> tuple[int, int] | None:
        """Differs after every change; ``None`` while there is no file."""
        try:
            found = self._path.stat()
        except OSError:
            return None
        return found.st_mtime_ns, found.st_ino

    def add(self, target: ComputeTarget) -> None:
        """Store a new target; nothing happens when it is there with the same fields.

        Raises
        ------
        CommandError
            There is another of that name.
        """
        with self._changing() as value:
            named = value["targets"]
            if target.name == LOCAL.name or named.get(target.name, stored_fields(target)) != stored_fields(target):
                raise CommandError(f"There is a target {target.name!r} already.", hint="Choose another name.")
            named[target.name] = stored_fields(target)
            value["past"].pop(target.name, None)

    def replace(self, target: ComputeTarget) -> None:
        """Store changed fields of a target; one that is gone stays gone."""
        with self._changing() as value:
            if target.name in value["targets"]:
                value["targets"][target.name] = stored_fields(target)

    def remove(self, name: str, *, past: bool = False) -> None:
        """Take a target off the list; when it was the current one, that is ``local`` from now on.

        Parameters
        ----------
        past
            Remember it for its runs, which it does not take with it; else forget it. One that another kernel
            has taken off so already stays remembered.
        """
        with self._changing() as value:
            gone = _taken(value, name)
            if not past:
                value["past"].pop(name, None)
            elif gone is not None:
                _remember(value, name, gone)

    def restore(self, target: ComputeTarget) -> None:
        """Take the target of that name off the list, and remember this one, which had the name before it."""
        with self._changing() as value:
            _taken(value, target.name)
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


def _taken(value: dict[str, Any], name: str) -> Any:
    if value.get("current") == name:
        value["current"] = LOCAL.name
    return value["targets"].pop(name, None)


def _remember(value: dict[str, Any], name: str, fields: Any) -> None:
    kept = value["past"]
    kept.pop(name, None)
    kept[name] = fields
    value["past"] = dict(list(kept.items())[-MAX_RETIRED_TARGETS:])


def stored_fields(target: ComputeTarget) -> dict[str, Any]:
    """A target as JSON: its kind and its fields."""
    fields: dict[str, Any] = msgspec.to_builtins(target)
    return fields
