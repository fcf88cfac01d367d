"""Named compute targets in ``targets.json``; ``local`` is always there. Never a secret."""

from __future__ import annotations

import difflib
import functools
import operator
from typing import Any

import msgspec

from jupyter_amltrain.errors import StateError, UnknownTarget
from jupyter_amltrain.spec.target import ComputeTarget, LocalTarget
from jupyter_amltrain.state import SCHEMA, StateRoot, check_schema, locked, read_json, write_json

LOCAL = LocalTarget(name="local")


class Targets:
    """The user's targets, shared by every kernel."""

    def __init__(self, root: StateRoot, kinds: tuple[type[ComputeTarget], ...]) -> None:
        self._path = root.targets
        self._kinds = kinds

    def _read(self) -> dict[str, Any]:
        if not self._path.exists():
            return {"schema": SCHEMA, "current": LOCAL.name, "targets": {}}
        value = read_json(self._path)
        check_schema(value, self._path)
        return dict(value)

    def all(self) -> list[ComputeTarget]:
        """Every target, ``local`` first."""
        kinds: Any = functools.reduce(operator.or_, self._kinds)
        named = self._read().get("targets", {})
        try:
            rest = [msgspec.convert(value, kinds) for value in named.values()]
        except msgspec.ValidationError as error:
            raise StateError(
                f"{self._path} holds a target that this version cannot read: {error}.",
                hint="Upgrade jupyter_amltrain, or remove that entry.",
            ) from error
        return [LOCAL, *(t for t in rest if t.name != LOCAL.name)]

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
        near = difflib.get_close_matches(name, targets, 3, 0.5)
        guess = f"Did you mean {' or '.join(near)}?" if near else f"There are: {', '.join(targets)}."
        raise UnknownTarget(f"No compute target named {name!r}.", hint=f"{guess} %aml_compute lists them.")

    @property
    def current(self) -> str:
        """Name of the target that is used when none is given."""
        return str(self._read().get("current", LOCAL.name))

    def use(self, name: str) -> None:
        """Make `name` the target of every kernel from now on."""
        self.get(name)
        with locked(self._path.with_suffix(".lock")):
            write_json(self._path, {**self._read(), "current": name})
