"""Number of a process in a job of several, from its variables; also among the files of a job's Python.

This file must load no module that a script might then find loaded (so not ``__future__``).
"""

TYPE_CHECKING = False  # do not import the module typing into the user's program
if TYPE_CHECKING:
    from typing import Mapping

#: Variable with the number, which ``rank.py`` sets.
VARIABLE = "AMLTRAIN_RANK"
#: Variables with the number, and those that are there, too, if a launcher has set it: a ``RANK`` alone is the user's.
_NAMES = ((VARIABLE, VARIABLE), ("RANK", "WORLD_SIZE"), ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"),
          ("PMI_RANK", "PMI_SIZE"), ("PMIX_RANK", "PMIX_RANK"))  # fmt: skip


def rank_of(environ: "Mapping[str, str]") -> int:
    """Return the number of a process; 0 for one alone."""
    for name, size in _NAMES:
        if environ.get(size) and environ.get(name, "").isdigit():
            return int(environ[name])
    return 0
