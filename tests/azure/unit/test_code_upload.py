"""What is sent is what its digest says."""

from __future__ import annotations

import pytest

from jupyter_amltrain.azure.service import code_upload
from jupyter_amltrain.errors import SubmitError
from jupyter_amltrain.jobs import snapshot


def test_code_tree_digest_equals_snapshot_digest(tmp_path):
    (tmp_path / "deep").mkdir()
    (tmp_path / "train.py").write_text("import deep.one\n")
    (tmp_path / "deep" / "one.py").write_text("1\n")
    (tmp_path / "run.sh").write_text("#!/bin/sh\n")
    (tmp_path / "run.sh").chmod(0o755)
    taken = snapshot.take_snapshot("cell.py", "print(1)\n", root=tmp_path, source=tmp_path)
    assert len(taken.files) == 4
    assert code_upload.snapshot_digest(code_upload.hash_files(taken.files)) == taken.digest
    (tmp_path / "train.py").write_text("import deep.two\n")
    assert code_upload.snapshot_digest(code_upload.hash_files(taken.files)) != taken.digest


def test_file_changed_while_sent_is_refused(tmp_path):
    file = tmp_path / "train.py"
    file.write_text("one\n")
    tree = code_upload.hash_files({"train.py": str(file)})
    file.write_text("two\n")
    with pytest.raises(SubmitError, match=r"train\.py changed"):
        code_upload.tar_gz(tree)
    file.unlink()
    with pytest.raises(SubmitError, match="Cannot read"):
        tree["train.py"].read()
