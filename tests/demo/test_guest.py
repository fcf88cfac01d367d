"""The demonstration is a guest: the product neither names it nor needs it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import jupyter_amltrain
from jupyter_amltrain import plugins
from jupyter_amltrain.backends.target_kinds import backend_class, kind_of, target_kinds
from jupyter_amltrain.errors import MissingDependency
from jupyter_amltrain.kernel.target_file import TargetFile
from jupyter_amltrain.schema.target import ForeignTarget
from jupyter_amltrain.state_dir import StateRoot, write_json

PACKAGE = Path(jupyter_amltrain.__file__).parent


def test_no_other_module_names_demonstration() -> None:
    name = re.compile(r"jupyter_amltrain\.demo\b|\bFake(Target|Backend)\b|[\"']fake[\"']")
    outside = [path for path in PACKAGE.rglob("*.py") if PACKAGE / "demo" not in path.parents]
    assert [str(path.relative_to(PACKAGE)) for path in outside if name.search(path.read_text("utf-8"))] == []


def test_stored_demonstration_target_without_the_guest_is_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plugins, "_entry_points", lambda: iter(()))
    plugins.kinds.cache_clear()
    try:
        root = StateRoot(tmp_path)
        write_json(
            root.path / "targets.json",
            {"schema": 1, "current": "sim", "targets": {"sim": {"kind": "fake", "name": "sim", "gpus": 1}}},
        )
        found = TargetFile(root, target_kinds())
        (_, sim) = found.all()
        assert isinstance(sim, ForeignTarget) and (sim.name, sim.stored_kind) == ("sim", "fake")
        with pytest.raises(MissingDependency, match="'fake'"):
            backend_class(kind_of(sim))
    finally:
        plugins.kinds.cache_clear()
