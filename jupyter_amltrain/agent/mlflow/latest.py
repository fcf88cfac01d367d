"""Which point of a metric is its value: the rule of the job's MLflow endpoint, of the kernel and of the importer."""

from typing import Tuple


class LatestPoint:
    """Value of a metric: the point with the highest step, then the latest time, then the last arrival.

    MLflow's stores use the same order, and take the largest value of one step and time, where this takes the newest.
    A point that repeats (equal step, time and value) changes nothing: MLflow 3's ``log_model`` sends the points of its
    step once more, with the id of the model.

    Parameters
    ----------
    equals
        Earlier values with the same step and time.

    Attributes
    ----------
    step
        Step of the value.
    time
        Its time, in any unit that is the same for all points.
    value
        The value itself; NaN and infinite values count like others.
    """

    __slots__ = ("step", "time", "value", "_equals")

    def __init__(self, step: int, time: float, value: float, equals: Tuple[float, ...] = ()) -> None:
        self.step, self.time, self.value = step, time, value
        self._equals = (value,) + equals  #: values with this step and time

    def offer(self, step: int, time: float, value: float) -> bool:
        """Take a point that has arrived; return whether it is the value now."""
        if step < self.step or (step == self.step and time < self.time):
            return False
        if step > self.step or time > self.time:
            self._equals = (value,)
        elif any(same(value, old) for old in self._equals):
            return False
        else:
            self._equals += (value,)
        self.step, self.time, self.value = step, time, value
        return True


def same(value: float, other: float) -> bool:
    """Return whether two values are equal, where NaN equals NaN."""
    return value == other or (value != value and other != other)


def rank(value: float, descending: bool = False) -> Tuple[bool, float]:
    """Return the sort key of a value; NaN comes last in both directions, as in MLflow."""
    if value != value:
        return True, 0.0
    return False, -value if descending else value
