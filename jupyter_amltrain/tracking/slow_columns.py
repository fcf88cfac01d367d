"""Columns of what a sampler records only when it changes: of GPUs, their processes and notes."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from jupyter_amltrain.agent.gpu_columns import SLOWS

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MIB = 1024.0 * 1024.0
_UNITS = {column.name: column.unit for column in SLOWS}
#: Names of columns that are believed: a file of a job may say anything.
MAX_NAMES = 200


class SlowColumns:
    """Changes between the ticks of one node.

    Parameters
    ----------
    indices
        Number of each GPU, in the order of the header.
    """

    def __init__(self, indices: Sequence[int]) -> None:
        self.indices = list(indices)
        self._changes: dict[str, list[tuple[int, Any]]] = {}
        self._texts: dict[str, dict[int, list[str]]] = {}

    def add(self, seq: int, value: Mapping[str, Any]) -> None:
        """Take an object that stands before tick `seq`; what is no such object is left out."""
        try:
            for i, changes in value.get("gpu") or ():
                if not 0 <= i < len(self.indices):
                    continue
                for name, of in changes.items():
                    self._change(f"gpu{self.indices[i]}_{name}", seq, of)
            if "processes" in value:
                self._processes(seq, value["processes"])
            if "note" in value:
                self._texts.setdefault("note", {}).setdefault(seq, []).append(str(value["note"]))
        except (TypeError, ValueError, IndexError, AttributeError):
            return

    def _change(self, name: str, seq: int, value: Any) -> None:
        if name in self._changes or len(self._changes) < MAX_NAMES:
            self._changes.setdefault(name, []).append((seq, value))

    def _processes(self, seq: int, rows: Sequence[Sequence[Any]]) -> None:
        counts = dict.fromkeys(self.indices, 0)
        words = []
        for index, pid, owner, memory, *name in rows:
            counts[index] = counts.get(index, 0) + 1
            size = "n/a" if memory is None else f"{memory} MiB"
            words.append(" ".join(str(word) for word in (f"gpu{index}:", pid, *name[:1], owner, size) if word != ""))
        for index, count in counts.items():
            self._change(f"gpu{index}_processes", seq, count)
        self._texts.setdefault("processes", {})[seq] = ["; ".join(words) or "none"]

    def columns(self, seq: NDArray[np.int64]) -> dict[str, Any]:
        """The values in force at each tick by column, and the texts at the ticks where they came.

        Parameters
        ----------
        seq
            Numbers of the ticks, ascending.
        """
        import numpy as np

        found: dict[str, Any] = {}
        for name, changes in self._changes.items():
            values = [value for _, value in changes]
            plain = all(value is None or isinstance(value, (bool, int, float)) for value in values)
            if plain:
                scale = MIB if _UNITS.get(name.partition("_")[2]) == "MiB" else 1.0
                table: Any = np.array([np.nan, *(scale * _number(value) for value in values)])
            else:
                table = np.array(
                    [None, *(v if v is None or isinstance(v, str) else json.dumps(v) for v in values)], object
                )
            at = np.searchsorted(np.array([first for first, _ in changes]), seq, side="right")
            found[name] = table[at]
        for name in sorted(self._texts, reverse=True):
            column: Any = np.full(len(seq), None, object)
            for first, texts in self._texts[name].items():
                k = int(np.searchsorted(seq, first))
                if k < len(seq):
                    before = [column[k]] if column[k] else []
                    column[k] = "; ".join([*before, *texts])
            found[name] = column
        return found


def _number(value: Any) -> float:
    """A float; NaN for none, and for what is too large for one."""
    try:
        return math.nan if value is None else float(value)
    except OverflowError:
        return math.nan
