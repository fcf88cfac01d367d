"""Values as folders, in the scripts of a pipeline's file: a step writes them, and another one reads them.

The module travels alone, as ``_amltrain_steps.py`` beside the script, with ``_amltrain_values.py``: Python 3.8, the
standard library.
"""

import json
import os
from typing import Any

_NODE, _FILES = "value.json", "files"


def write(value: Any, folder: str) -> None:
    """Write a value into a folder."""
    values = __import__("_amltrain_values")
    os.makedirs(folder, exist_ok=True)
    node = values.write(value, os.path.join(folder, _FILES), allow_pickle=True)
    with open(os.path.join(folder, _NODE), "w", encoding="utf-8") as file:
        json.dump(node, file)


def read(folder: str) -> Any:
    """Return the value in a folder."""
    values = __import__("_amltrain_values")
    with open(os.path.join(folder, _NODE), encoding="utf-8") as file:
        node = json.load(file)
    return values.read(node, os.path.join(folder, _FILES), allow_pickle=True, trusted=True)
