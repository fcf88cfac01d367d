"""What a person reads of statements that were run in a job."""

from __future__ import annotations

from collections.abc import Sequence

from jupyter_amltrain.schema.run import Phase, Poke
from jupyter_amltrain.text import seconds_text


def running_since(phases: Sequence[Phase]) -> float | None:
    """Return when the script of a run began, unix seconds."""
    return next((phase.start for phase in phases if phase.name == "running"), None)


def poke_text(poke: Poke, began: float | None) -> str:
    """Return ``after 2 min 4 s, step 340, by anna on gpu1: optimizer.param_groups[0]["lr"] /= 10``.

    Parameters
    ----------
    began
        When the script began, unix seconds.
    """
    where = [
        f"after {seconds_text(max(0.0, poke.time - began))}" if began is not None else "",
        f"step {poke.step}" if poke.step is not None else "",
        f"rank {poke.rank}" if poke.rank else "",
        f"by {poke.who}" if poke.who else "",
    ]
    return f"{', '.join(filter(None, where))}: {poke.text}" + (f" ({poke.error})" if poke.error else "")


def repeat_note(handle: str, pokes: Sequence[Poke]) -> str:
    """Return the note of a run that repeats another one, in which statements were run; empty without them."""
    if not pokes:
        return ""
    count = "a statement was" if len(pokes) == 1 else f"{len(pokes)} statements were"
    return f"While {handle} ran, {count} run in it, which this run does not repeat: {pokes[-1].text}"
