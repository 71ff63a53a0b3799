"""Time stamps grow; files are whole or not there; errors name option and path."""

import errno
import os
import re

import pytest

from ge_graph.errors import ConfigError
from tair_debug import artefacts


def test_stamps_grow_and_have_twenty_digits():
    stamps = [artefacts.stamp() for _ in range(1000)]
    assert stamps == sorted(set(stamps))
    assert all(re.fullmatch(r"\d{20}", s) for s in stamps)


def test_a_file_is_whole_and_only_its_owner_reads_it(tmp_path):
    path = tmp_path / "a.txt"
    artefacts.write_text(path, "ü\n", "option")
    assert path.read_text(encoding="utf-8") == "ü\n"
    assert path.stat().st_mode & 0o777 == 0o600
    assert os.listdir(tmp_path) == ["a.txt"]


def test_what_fails_half_way_leaves_the_old_file(tmp_path):
    path = tmp_path / "a.txt"
    artefacts.write_text(path, "old", "option")

    def fill(file):
        file.write(b"new but")
        raise OSError(errno.ENOSPC, "No space left on device")

    with pytest.raises(ConfigError, match=r"GE1041.*config\.x: cannot write .*a\.txt: No space left on device"):
        artefacts.write(path, fill, "config.x")
    assert path.read_text() == "old"
    assert os.listdir(tmp_path) == ["a.txt"]


@pytest.mark.parametrize("where", ["missing/a.txt", "file/a.txt"])
def test_bad_places(tmp_path, where):
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"GE1041.*config\.x: cannot write"):
        artefacts.write_text(tmp_path / where, "x", "config.x")
    with pytest.raises(ConfigError, match=r"GE1041.*config\.y"):
        artefacts.folder(tmp_path / "file" / "below", "config.y")


def test_rank_outside_a_distributed_run():
    assert artefacts.rank_folder() == "worldsize1_global_rank0"
