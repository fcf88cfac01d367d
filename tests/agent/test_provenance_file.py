from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.agent.supervise import provenance_file


def metadata(folder: Path, *names: str) -> Path:
    for name in names:
        (folder / name).mkdir(parents=True)
    return folder


def test_packages_are_read_from_metadata_names(tmp_path: Path) -> None:
    first = metadata(tmp_path / "a", "Foo_Bar-1.2.3.dist-info", "old-0.1-py3.9.egg-info", "dev.egg-info", "foo_bar")
    (first / "dev.egg-info" / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: dev\nVersion: 7\n\nVersion: 8\n")
    second = metadata(tmp_path / "b", "foo.bar-9.dist-info", "other-2.0+cu126.dist-info")
    found = provenance_file.packages([str(first), str(tmp_path / "missing"), str(second)])
    assert found == {"dev": "7", "foo-bar": "1.2.3", "old": "0.1", "other": "2.0+cu126"}


@pytest.mark.parametrize(
    ("argv", "more", "expected"),
    [
        ([sys.executable, "x.py"], {}, sys.executable),
        (["/bin/sh", "-c", "python x.py"], {"provenance": {"interpreter": sys.executable}}, sys.executable),
        (["/bin/sh", "-c", "true"], {}, ""),
        (["/bin/sh"], {"provenance": 3}, ""),
        (["python-that-is-not-there"], {}, ""),
    ],
)
def test_interpreter_is_the_program_of_the_job(argv: list[str], more: dict[str, object], expected: str) -> None:
    assert provenance_file.interpreter_of({"argv": argv, **more}) == expected


def test_built_environment_has_the_interpreter_of_the_job(tmp_path: Path) -> None:
    python = tmp_path / "bin" / "python"
    assert provenance_file.interpreter_of({"argv": [sys.executable]}, str(tmp_path)) == sys.executable
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    for argv in (["python", "x.py"], ["/bin/sh", "-c", "python x.py"]):
        assert provenance_file.interpreter_of({"argv": argv}, str(tmp_path)) == str(python)


def test_report_of_interpreter_is_stored_until_a_folder_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(place)], check=True)
    python, cache = str(place / "bin" / "python"), str(tmp_path / "cache")
    os.mkdir(cache)
    (site,) = place.glob("lib/python*/site-packages")

    def written(name: str) -> dict[str, str]:
        (tmp_path / name).mkdir()
        provenance_file.write(str(tmp_path / name), {"argv": [python, "x.py"]}, cache)
        record = json.loads((tmp_path / name / "provenance.json").read_text())
        assert record["python"]["version"] and record["machine"]["cpus"]
        packages: dict[str, str] = record["packages"]
        return packages

    assert "foo" not in written("first")
    starts = []
    start = provenance_file._started
    monkeypatch.setattr(provenance_file, "_started", lambda program: (starts.append(program), start(program))[1])
    written("again")
    assert not starts
    metadata(site, "foo-1.0.dist-info")
    assert written("changed")["foo"] == "1.0" and starts == [python]


def test_interpreter_that_does_not_start_leaves_packages_unknown(tmp_path: Path) -> None:
    broken = tmp_path / "python3"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    provenance_file.write(str(tmp_path), {"argv": [str(broken)]})
    record = json.loads((tmp_path / "provenance.json").read_text())
    assert record["machine"]["host"] and "packages" not in record
