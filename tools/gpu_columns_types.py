"""Writes ``labextension/src/gpuColumns.ts``: the fields of the table of GPU columns that the page reads.

``python -m tools.gpu_columns_types`` writes it, ``python -m tools.gpu_columns_types --check`` says whether it is
fresh. Runs in ``.venv``: it imports the package.
"""

from __future__ import annotations

import json
import sys

from jupyter_amltrain.agent.telemetry.gpu_columns import GPU_COLUMNS, GpuColumn, symbol
from tools.environment import ROOT

PLACE = ROOT / "labextension" / "src" / "gpuColumns.ts"

_HEAD = """\
/** The table of GPU columns. Written by `python -m tools.gpu_columns_types`; do not edit. */

export type GpuColumnKind = 'tick' | 'figure' | 'slow';
export type GpuReducer = 'min' | 'mean' | 'max' | 'last' | 'sum';

/** One metric of a GPU; see `jupyter_amltrain/agent/telemetry/gpu_columns.py`. */
export interface IGpuColumn {
  readonly name: string;
  /** As a chart writes it: `%`, `MiB`, `W`... */
  readonly unit: string;
  readonly label: string;
  /** In each tick, every few seconds, or only when it changes: a slow value has no history. */
  readonly kind: GpuColumnKind;
  /** How a stretch of time becomes one number. `sum` is for shares of time: a chart shows their mean. */
  readonly reducer: GpuReducer;
  /** Ends of its scale; `null`: the scale follows the data. */
  readonly range: readonly [number, number | null];
}
"""


def _row(column: GpuColumn) -> str:
    fields = {
        "name": column.name,
        "unit": symbol(column.unit),
        "label": column.label,
        "kind": column.kind,
        "reducer": column.reducer,
        "range": [0, column.maximum],
    }
    lines = [f"    {name}: {_literal(value)}" for name, value in fields.items()]
    return "  {\n" + ",\n".join(lines) + "\n  }"


def _literal(value: object) -> str:
    """A value as TypeScript with our quotes."""
    if isinstance(value, str):
        return "'" + json.dumps(value, ensure_ascii=False)[1:-1].replace('\\"', '"').replace("'", "\\'") + "'"
    return json.dumps(value)


def text() -> str:
    """The whole file."""
    names = "".join("\n  | " + _literal(column.name) for column in GPU_COLUMNS if column.kind != "slow")
    rows = ",\n".join(_row(column) for column in GPU_COLUMNS)
    return "\n".join(
        [
            _HEAD,
            "/** Columns with a history. */",
            f"export type GpuSeriesName ={names};\n",
            f"export const GPU_COLUMNS: readonly IGpuColumn[] = [\n{rows}\n];\n",
        ]
    )


def main(argv: list[str]) -> int:
    """Write the file, or compare it."""
    wanted = text()
    if "--check" not in argv:
        PLACE.write_text(wanted)
        return 0
    if PLACE.exists() and PLACE.read_text() == wanted:
        return 0
    print(
        f"{PLACE.relative_to(ROOT)} is out of date. Type: .venv/bin/python -m tools.gpu_columns_types", file=sys.stderr
    )
    return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
