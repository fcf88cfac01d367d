"""Modules of the notebook's folder that were edited after their import."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from jupyter_amltrain.jobs.edited_modules import note_on_edited

TEXT = '''"""Helpers."""
import json

RATE = 3
count = 0


def scaled(x):
    def inner(y):
        return y * RATE
    return inner(x)


class Net:
    def forward(self, x):
        return json.dumps(x)
'''


@pytest.fixture
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    path = tmp_path / "amltrain_helpers.py"
    path.write_text(TEXT)
    importlib.import_module("amltrain_helpers")
    yield path
    del sys.modules["amltrain_helpers"]


def note(path: Path) -> str:
    return note_on_edited(["amltrain_helpers", "json", "absent"], str(path.parent))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("RATE = 3", "RATE = 4"),
        ("y * RATE", "y + RATE"),
        ("json.dumps(x)", "json.dumps(x, indent=1)"),
        ("def scaled", "def rescaled"),
        ("self, x", "self, x, y"),
    ],
)
def test_edited_module_is_named(module: Path, old: str, new: str) -> None:
    module.write_text(TEXT.replace(old, new))
    assert "amltrain_helpers" in note(module) and "json" not in note(module)


@pytest.mark.parametrize("text", [TEXT, f"# more\n\n{TEXT}", TEXT.replace('"""Helpers."""', "# none"), "def broken(:"])
def test_comments_and_unsaved_text_are_no_edit(module: Path, text: str) -> None:
    module.write_text(text)
    assert not note(module)


def test_variable_that_the_kernel_has_changed_is_no_edit(module: Path) -> None:
    sys.modules["amltrain_helpers"].scaled(1)
    assert not note_on_edited(["amltrain_helpers"], "/elsewhere") and not note(module)


def test_reloaded_module_is_no_edit(module: Path) -> None:
    module.write_text(TEXT.replace("RATE = 3", "RATE = 4"))
    importlib.reload(sys.modules["amltrain_helpers"])
    assert not note(module)
