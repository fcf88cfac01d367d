"""Which metrics of a run do not come from MLflow: their sources, and what was taken of them already."""

import re
import struct
from typing import Any, Dict, List, Mapping, Tuple

#: Seconds for what is left to read after the end of a job.
FINISH_S = 20.0

#: Values that are compared with those of other sources; later ones of a very long run are taken as they are.
_MAX_KNOWN = 300_000


class MetricSources:
    """Metrics of the job's own run that the sink has from printed lines and files.

    It is rebuilt from the journal, whose lines have ``a: {"source": name, "place": file, "at": position}``.

    Attributes
    ----------
    sources
        Source of each metric, such as ``TensorBoard``.
    positions
        Next position in each file.
    """

    def __init__(self) -> None:
        self.sources: Dict[str, str] = {}
        self.positions: Dict[str, int] = {}
        self._known: Dict[Tuple[str, int, bytes], str] = {}

    def note(self, added: Mapping[str, Any], points: List[Dict[str, Any]]) -> None:
        """Take a line of the journal into account."""
        place, source = str(added["place"]), str(added["source"])
        self.positions[place] = int(added["at"])
        for point in points:
            self.sources.setdefault(point["key"], source)
            if len(self._known) < _MAX_KNOWN:
                self._known.setdefault(mark(point["key"], int(point["step"]), float(point["value"])), source)

    def is_repeated(self, source: str, name: str, step: int, value: float) -> bool:
        """Whether another tracker has this value: two of one program record the same, by names like *val/loss*."""
        return self._known.get(mark(name, step, value), source) != source


def last_word(name: str) -> str:
    """Return what two trackers have in common in the name of a metric: ``loss`` of ``val/loss`` and ``val_loss``."""
    return re.split(r"[/_.: -]", name.rstrip("/_.: -"))[-1].lower()


def mark(name: str, step: int, value: float) -> Tuple[str, int, bytes]:
    """Return what two records of one value have in common."""
    try:
        return last_word(name), step, struct.pack("<f", value)  # TensorBoard keeps float32
    except OverflowError:
        return last_word(name), step, struct.pack("<d", value)
