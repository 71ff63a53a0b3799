"""Files are read only if they are plain ones."""

import os
import socket

import numpy as np
import pytest

from ge_graph import files
from ge_graph.npy import read_npy


@pytest.fixture(params=["pipe", "socket", "device", "folder"])
def odd(request, tmp_path, monkeypatch):
    """The path of something that is no plain file; reading it would wait, or never end."""
    monkeypatch.chdir(tmp_path)  # the address of a socket is short
    path = tmp_path / "odd.npy"
    if request.param == "pipe":
        os.mkfifo(path)
    elif request.param == "socket":
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    elif request.param == "device":
        path.symlink_to("/dev/zero")
    else:
        path.mkdir()
    return path


def test_what_is_no_plain_file_is_not_read(odd):
    with pytest.raises(OSError, match="not a regular file"):
        files.read_plain(odd, 10)
    with pytest.raises(ValueError, match="not a regular file"):
        read_npy(odd)


def test_plain_files(tmp_path):
    path = tmp_path / "a.npy"
    np.save(path, np.arange(3))
    assert read_npy(path)[1].tolist() == [0, 1, 2]
    assert files.read_plain(path, 1000) == path.read_bytes()
    with pytest.raises(OSError, match="more than 5"):
        files.read_plain(path, 5)
