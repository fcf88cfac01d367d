"""What a script imports, as it is installed here."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from jupyter_amltrain.errors import PreflightError
from jupyter_amltrain.jobs import requirements
from jupyter_amltrain.jobs.imports import local_modules
from jupyter_amltrain.schema.environment import Environment
from jupyter_amltrain.schema.job import JobSpec

HERE = f"{sys.version_info.major}.{sys.version_info.minor}"


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of installed distributions, first on the path."""
    folder = tmp_path / "site"
    folder.mkdir()
    monkeypatch.syspath_prepend(str(folder))
    return folder


def install(
    site: Path, name: str, version: str, files: list[str], *, needs: tuple[str, ...] = (), origin: object = None
) -> None:
    """As pip leaves it: files, and a ``dist-info`` with METADATA, RECORD and perhaps direct_url.json (PEP 610)."""
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).write_text("")
    info = site / f"{name.replace('-', '_')}-{version}.dist-info"
    info.mkdir()
    lines = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}", *(f"Requires-Dist: {n}" for n in needs)]
    (info / "METADATA").write_text("\n".join(lines) + "\n")
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in [*files, f"{info.name}/METADATA"]))
    if origin is not None:
        (info / "direct_url.json").write_text(json.dumps(origin))


def found(text: str, root: Path, source: Path | None = None) -> tuple[str, ...]:
    own = {**(local_modules(text.encode(), source) if source else {}), **local_modules(text.encode(), root)}
    got = requirements.captured(text.encode(), own)
    assert got.python == HERE
    return got.packages


@pytest.mark.thorough
def test_requirement_is_named_by_distribution(site: Path, tmp_path: Path) -> None:
    install(site, "Image-Reader", "2.1", ["imread/__init__.py"])
    install(site, "one-file", "0.3+cpu", ["onefile.py"])
    assert found("import os, json\nimport imread.tiff as t\nfrom onefile import *\nfrom . import x", tmp_path) == (
        "Image-Reader==2.1",
        "one-file==0.3",
    )
    assert found("import sys, __main__\nfrom __future__ import annotations\n", tmp_path) == ()


@pytest.mark.thorough
def test_requirement_of_namespace_is_imported_part(site: Path, tmp_path: Path) -> None:
    install(site, "cloud-disk", "1.0", ["cloud/disk/__init__.py"])
    install(site, "cloud-net", "2.0", ["cloud/net/__init__.py", "cloud/net/http.py"])
    assert found("from cloud import disk", tmp_path) == ("cloud-disk==1.0",)
    assert found("import cloud.net.http", tmp_path) == ("cloud-net==2.0",)
    assert found("import cloud.disk\nfrom cloud.net.http import get", tmp_path) == ("cloud-disk==1.0", "cloud-net==2.0")


def test_requirement_of_dependency_is_omitted(site: Path, tmp_path: Path) -> None:
    install(
        site, "flow", "3.1", ["flow/__init__.py", "flow/server.py"], needs=("flow_skinny (==3.1)", "x ; extra == 'y'")
    )
    install(site, "flow-skinny", "3.1", ["flow/__init__.py"])
    assert found("import flow", tmp_path) == ("flow==3.1",)


@pytest.mark.thorough
def test_local_modules_are_followed_and_omitted(site: Path, tmp_path: Path) -> None:
    install(site, "deep", "1.0", ["deep/__init__.py"])
    work = tmp_path / "work"
    work.mkdir()
    (work / "mine.py").write_text("import deep\ntry:\n    import not_here\nexcept ImportError:\n    pass\n")
    (work / "perhaps.py").write_text("import not_here\n")
    assert found("import mine", work) == ("deep==1.0",)
    assert found("import mine\nif False:\n    import perhaps", work) == ("deep==1.0",)
    with pytest.raises(PreflightError, match="'not_here'"):
        found("import mine, perhaps", work)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    assert found("import mine", elsewhere, source=work) == ("deep==1.0",)


@pytest.mark.thorough
@pytest.mark.parametrize(
    "text",
    [
        "try:\n    import absent\nexcept ImportError:\n    absent = None",
        "def f():\n    import absent",
        "if False:\n    import absent",
        "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    import absent",
    ],
)
def test_optional_import_is_omitted(text: str, tmp_path: Path) -> None:
    assert found(text, tmp_path) == ()


@pytest.mark.thorough
def test_missing_import_is_refused(site: Path, tmp_path: Path) -> None:
    with pytest.raises(PreflightError, match=r"--env kernel: .*'absent'"):
        found("import absent.part", tmp_path)
    (site / "loose.py").write_text("")  # as an editable installation: there, and of no distribution
    with pytest.raises(PreflightError, match="'loose'.*--source"):
        found("import loose", tmp_path)
    install(site, "built-here", "1.0", ["builthere.py"], origin={"url": "file:///home/me/x", "dir_info": {}})
    with pytest.raises(PreflightError, match="'builthere'"):
        found("import builthere", tmp_path)
    assert found("try:\n    import builthere\nexcept ImportError:\n    pass", tmp_path) == ()


def test_vcs_requirement_has_commit_without_password(site: Path, tmp_path: Path) -> None:
    info = {"vcs": "git", "commit_id": "a" * 40}
    install(site, "fresh", "1.0", ["fresh.py"], origin={"url": "https://host/x.git", "vcs_info": info})
    install(site, "closed", "1.0", ["closed.py"], origin={"url": "https://me:pw@host/y.git", "vcs_info": info})
    install(site, "torn", "1.0", ["torn.py"])
    (site / "torn-1.0.dist-info" / "direct_url.json").write_text("{")
    assert found("import fresh, closed, torn", tmp_path) == (
        "closed==1.0",
        f"fresh @ git+https://host/x.git@{'a' * 40}",
        "torn==1.0",
    )


@pytest.mark.thorough
def test_completed_requirements_are_kept(site: Path, tmp_path: Path) -> None:
    install(site, "one-file", "0.3", ["onefile.py"])
    spec = JobSpec(name="x", script="import onefile", notebook_dir=str(tmp_path), environment=Environment(kernel=True))
    done = requirements.completed(spec)
    assert done.environment == Environment(kernel=True, python=HERE, packages=("one-file==0.3",))
    assert done.environment.conda_file["dependencies"] == [f"python={HERE}", "pip", {"pip": ["one-file==0.3"]}]
    (site / "one_file-0.3.dist-info" / "METADATA").write_text("Metadata-Version: 2.1\nName: one-file\nVersion: 9\n")
    assert requirements.completed(done) is done  # run again
    plain = JobSpec(name="x", script="import onefile")
    assert requirements.completed(plain) is plain
    (tmp_path / "train.py").write_text("import onefile\n")
    file = JobSpec(name="x", script_name="train.py", notebook_dir=str(tmp_path), environment=Environment(kernel=True))
    assert requirements.completed(file).environment.packages == ("one-file==9",)


def test_packages_include_those_of_the_notebook_and_of_its_values() -> None:
    node = {
        "as": "graph",
        "file": "a.graph",
        "bytes": 1,
        "items": [],
        "name": "frame",
        "needs": ["pandas", "cloudpickle"],
    }
    spec = JobSpec(
        name="n",
        script="print(frame)",
        modules={"_amltrain_with": "import msgspec"},
        values={"frame": node},
        environment=Environment(kernel=True),
    )
    names = {pin.partition("==")[0] for pin in requirements.completed(spec).environment.packages}
    assert {"pandas", "cloudpickle", "msgspec"} <= names
