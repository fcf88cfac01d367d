"""Which run is meant: by its handle, its id, or the beginning of one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

from jupyter_amltrain.errors import UnknownRun
from jupyter_amltrain.spec.run import RunHandle, split_handle


def match(text: str, handles: Sequence[RunHandle]) -> RunHandle:
    """The one of `handles` (newest first) that `text` means; ``last`` is the newest.

    Raises
    ------
    UnknownRun
        None or several; names the near matches.
    """
    if text == "last":
        if not handles:
            raise UnknownRun("There is no run yet.", hint="Start a cell with %%aml_submit.")
        return handles[0]
    ids = {handle: split_handle(handle)[1] for handle in handles}
    exact = [h for h, i in ids.items() if text in (h, i)]
    begins = exact or [h for h, i in ids.items() if i.startswith(text) or h.startswith(text)]
    if len(begins) == 1:
        return begins[0]
    if begins:
        raise UnknownRun(f"{text!r} fits {len(begins)} runs: {', '.join(begins[:4])}.", hint="Type more of it.")
    names: dict[str, RunHandle] = {i: h for h, i in ids.items()}
    names.update({str(h): h for h in ids})
    near = [names[m] for m in difflib.get_close_matches(text, names, 3, 0.5)]
    guess = f"Did you mean {' or '.join(dict.fromkeys(near))}? " if near else ""
    raise UnknownRun(f"No run {text!r}.", hint=f"{guess}%aml_runs lists them.")
