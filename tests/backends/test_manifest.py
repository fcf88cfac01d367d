"""Files that are sent by content: what changes meanwhile is never sent under an old digest."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from jupyter_amltrain.backends.manifest import Manifest, PartReader, manifest_of, read_contents
from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs.snapshot import digest_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    made = tmp_path / "weights.bin"
    made.write_bytes(b"first" * 1000)
    return made


def listed(file: Path) -> Manifest:
    return manifest_of({"main.py": b"print(1)", "weights.bin": str(file)}, ())


def test_contents_are_read_by_digest(file: Path) -> None:
    manifest = listed(file)
    assert read_contents(manifest.contents) == [b"print(1)", b"first" * 1000]


@pytest.mark.parametrize("change", ["edited", "shorter", "deleted"])
@pytest.mark.parametrize("large", [False, True])
def test_file_that_changes_meanwhile_is_named(file: Path, change: str, large: bool) -> None:
    contents = listed(file).contents
    if change == "deleted":
        file.unlink()
    else:
        file.write_bytes(b"other" * (1000 if change == "edited" else 10))
    with pytest.raises(SubmitError) as caught:
        if large:
            (digest,) = [digest for digest, source in contents.items() if source == str(file)]
            reader = PartReader(digest, str(file))
            while not reader.read(1024)[1]:
                pass
        else:
            read_contents(contents)
    assert caught.value.code == "submit.changed" and str(file) in str(caught.value)


def test_file_deleted_before_it_is_listed_is_named(file: Path) -> None:
    file.unlink()
    with pytest.raises(SubmitError, match=r"weights\.bin"):
        listed(file)


@pytest.mark.parametrize("size", [0, 1024, 5000])
def test_parts_are_the_content(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * 20
    file = tmp_path / "file"
    file.write_bytes(content[:size])
    for source in (content[:size], str(file)):
        reader, parts, is_last = PartReader(hashlib.sha256(content[:size]).hexdigest(), source), [], False
        while not is_last:
            part, is_last = reader.read(1024)
            parts.append(part)
        assert b"".join(parts) == content[:size] and reader.offset == size


def test_tree_digest_is_that_of_a_copy(file: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "main.py").write_bytes(b"print(1)")
    (copy / "weights.bin").write_bytes(file.read_bytes())
    assert listed(file).tree_digest() == digest_of(copy, ["weights.bin", "main.py"])


def test_list_is_changes_of_the_most_similar_one(file: Path) -> None:
    first = listed(file)
    second = manifest_of({"main.py": b"print(2)", "weights.bin": str(file)}, [first])
    assert second.changes.base == first.digest and not second.changes.removed
    assert [name for name, *_ in second.changes.changed] == ["main.py"]
