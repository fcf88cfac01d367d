from __future__ import annotations

import json
import stat
import threading
from pathlib import Path
from typing import Any

import pytest

from jupyter_amltrain.backends.target_kinds import backend_class, kind_of, target_kinds
from jupyter_amltrain.demo import FakeTarget
from jupyter_amltrain.errors import MissingDependency, StateError, UnknownTarget
from jupyter_amltrain.kernel.target_file import LOCAL, MAX_RETIRED_TARGETS, TargetFile
from jupyter_amltrain.schema.fields import fields_of
from jupyter_amltrain.schema.target import LocalTarget
from jupyter_amltrain.state_dir import StateRoot


def targets(folder: Path, *named: dict[str, Any], **top: Any) -> TargetFile:
    root = StateRoot(folder / "home")
    rows = {row["name"]: row for row in named}
    root.targets.write_text(json.dumps({"schema": 1, "current": "local", "targets": rows, **top}))
    root.targets.chmod(0o600)
    return TargetFile(root, target_kinds())


FAKE = {"kind": "fake", "name": "fake", "running": 5}


def test_local_target_always_exists(tmp_path: Path) -> None:
    empty = TargetFile(StateRoot(tmp_path), target_kinds())
    assert empty.all() == [LocalTarget(name="local")] and empty.current == "local"
    assert not (tmp_path / "targets.json").exists()  # reading leaves nothing behind


def test_named_targets_follow_local(tmp_path: Path) -> None:
    found = targets(tmp_path, FAKE, {"kind": "local", "name": "local", "python": "/opt/py"})
    assert found.all() == [LocalTarget(name="local"), FakeTarget(name="fake", running=5.0)]
    assert found.get("fake") == FakeTarget(name="fake", running=5.0)


def test_use_is_stored_and_unknown_is_refused(tmp_path: Path) -> None:
    found = targets(tmp_path, FAKE)
    found.use("fake", default=True)
    assert found.current == "fake"
    assert TargetFile(StateRoot(tmp_path / "home"), target_kinds()).current == "fake"
    assert stat.S_IMODE((tmp_path / "home" / "targets.json").stat().st_mode) == 0o600
    with pytest.raises(UnknownTarget, match=r"'fke'.*fake\?.*%aml_compute"):
        found.use("fke")
    with pytest.raises(UnknownTarget, match="local, fake"):
        found.get("zzz")
    assert found.current == "fake"


def test_concurrent_target_writes_lose_nothing(tmp_path: Path) -> None:
    found = targets(tmp_path, FAKE)
    threads = [threading.Thread(target=found.use, args=(name,)) for name in ["fake", "local"] * 10]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found.current in ("fake", "local") and len(found.all()) == 2


def test_unreadable_targets_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="schema 99"):
        targets(tmp_path, schema=99).all()
    with pytest.raises(StateError, match="version") as caught:
        targets(tmp_path, {"kind": "fake", "name": "f", "running": "long"}).all()
    assert "\n" not in str(caught.value)
    (tmp_path / "home" / "targets.json").write_text("{")
    with pytest.raises(StateError, match="Cannot read"):
        TargetFile(StateRoot(tmp_path / "home"), target_kinds()).all()


def test_target_of_a_missing_package_does_not_hide_the_others(tmp_path: Path) -> None:
    row = {"kind": "quantum", "name": "q", "qubits": 5}
    found = targets(tmp_path, row, FAKE)
    assert [target.name for target in found.all()] == ["local", "q", "fake"]
    with pytest.raises(MissingDependency, match="quantum"):
        backend_class(kind_of(found.get("q")))
    found.add(FakeTarget(name="new"))
    assert json.loads((tmp_path / "home" / "targets.json").read_text())["targets"]["q"] == row
    found.remove("q")
    assert "q" not in [target.name for target in found.all()]


def test_target_kind_has_backend() -> None:
    for kind in target_kinds():
        made = kind(name="x", **{field.name: "y" for field in fields_of(kind) if field.required and field.flag})
        assert issubclass(type(made), backend_class(kind_of(made)).Target)
    with pytest.raises(MissingDependency, match="quantum"):
        backend_class("quantum")


def test_removed_target_is_remembered_for_runs(tmp_path: Path) -> None:
    found = targets(tmp_path, FAKE, {**FAKE, "name": "other"})
    was = found.get("fake")
    found.use("fake")
    found.remove("fake", past=True)
    found.remove("other")
    assert found.known("fake") == was and found.read() == (found.all(), "local", [was])
    message = "'fake' was deleted; its runs can still be read. They are in %aml_runs list --target fake."
    with pytest.raises(UnknownTarget, match=f"{message} .*local."):
        found.get("fake")
    found.remove("fake", past=True)  # another kernel's, which has seen the same
    assert found.retired() == [was]
    with pytest.raises(UnknownTarget, match="'other'"):
        found.known("other")
    found.add(was)
    assert found.get("fake") == was and found.retired() == []
    found.use("fake")
    found.restore(was)
    assert found.read() == ([LOCAL], "local", [was])
    for i in range(MAX_RETIRED_TARGETS + 3):
        found.add(FakeTarget(name=f"t{i}"))
        found.remove(f"t{i}", past=True)
    assert [target.name for target in found.retired()] == [f"t{i}" for i in range(3, MAX_RETIRED_TARGETS + 3)]
    found.remove("t5")
    assert "t5" not in [target.name for target in found.retired()]


def of_notebook(folder: Path, notebook: str) -> TargetFile:
    return TargetFile(StateRoot(folder / "home"), target_kinds(), notebook)


def test_use_is_of_one_notebook_and_its_next_kernel(tmp_path: Path) -> None:
    targets(tmp_path, FAKE)
    of_notebook(tmp_path, "/w/a.ipynb").use("fake")
    assert of_notebook(tmp_path, "/w/a.ipynb").current == "fake"
    assert of_notebook(tmp_path, "/w/b.ipynb").current == of_notebook(tmp_path, "").current == "local"


def test_use_without_notebook_lasts_as_long_as_kernel(tmp_path: Path) -> None:
    found = targets(tmp_path, FAKE)
    found.use("fake")
    assert found.current == "fake" and found.default == "local"
    assert of_notebook(tmp_path, "").current == "local"
    found.remove("fake")
    assert found.current == "local"


def test_default_is_of_notebooks_that_chose_none(tmp_path: Path) -> None:
    targets(tmp_path, FAKE)
    first, second = of_notebook(tmp_path, "/w/a.ipynb"), of_notebook(tmp_path, "/w/b.ipynb")
    first.use("local")
    second.use("local")
    second.use("fake", default=True)
    assert (first.current, second.current, second.default) == ("local", "fake", "fake")
    second.use("local", default=True)
    assert second.current == "local"


def test_stored_current_target_of_before_is_default(tmp_path: Path) -> None:
    targets(tmp_path, FAKE)
    path = tmp_path / "home" / "targets.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "current": "fake"}))
    assert of_notebook(tmp_path, "/w/a.ipynb").current == "fake"


def test_removed_target_leaves_notebooks_at_local(tmp_path: Path) -> None:
    found = targets(tmp_path, FAKE, {**FAKE, "name": "billed"})
    notebook = of_notebook(tmp_path, "/w/a.ipynb")
    notebook.use("fake")
    found.use("billed", default=True)
    found.remove("fake")
    assert notebook.read()[1] == notebook.current == "local"  # not the default, which may cost


def test_first_submit_to_billed_target_is_noted_once_per_notebook(tmp_path: Path) -> None:
    found = targets(tmp_path, FAKE)
    assert [of_notebook(tmp_path, "/w/a.ipynb").note_billed("fake", "3 USD") for _ in range(2)] == [True, False]
    assert of_notebook(tmp_path, "/w/a.ipynb").note_billed("fake", "2 x 3 = 6 USD")
    assert of_notebook(tmp_path, "/w/b.ipynb").note_billed("fake", "3 USD")
    assert [found.note_billed("fake", "3 USD") for _ in range(2)] == [True, False]
    was = found.get("fake")
    found.remove("fake")
    found.add(was)
    assert found.note_billed("fake", "3 USD") and of_notebook(tmp_path, "/w/a.ipynb").note_billed("fake", "3 USD")
