"""A run whose log a test writes."""

from __future__ import annotations

from tests.ui.lab import LabServer, NotebookPage

#: Writes what a file holds, so that a test decides when a log grows.
WRITER = r"""
import os, sys, time
place, at = sys.argv[1], 0
while True:
    if os.path.exists(place):
        text = open(place, newline="").read()
        if "END" in text[at:]:
            break
        sys.stdout.write(text[at:])
        sys.stdout.flush()
        at = len(text)
    time.sleep(0.05)
"""


class ScriptedRun:
    """A run of a real process whose log grows when the test says so."""

    def __init__(self, notebook: NotebookPage, lab: LabServer, name: str) -> None:
        self.place = lab.notebooks / f"{name}.txt"
        source = WRITER.replace("sys.argv[1]", repr(str(self.place)))
        notebook.cell(f"%%aml_submit --target local --name {name}\n{source}")
        self.handle = str(notebook.records()[-1]["handle"])

    def say(self, text: str) -> None:
        with self.place.open("a", newline="") as file:
            file.write(text)

    def end(self) -> None:
        self.say("END")
