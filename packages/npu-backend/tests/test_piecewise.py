"""Piecewise compilation as serving engines do it: pieces are compiled, kept as text, and loaded in a second process."""

import json
from pathlib import Path

import pytest

from tair_testing import warm

SERVER = Path(__file__).parent / "data" / "piecewise_server.py"
PIECES = 4  # around three attentions


def start(mode, folder):
    return json.loads(warm.run(str(SERVER), mode, str(folder), cwd=folder).stdout.splitlines()[-1])


@pytest.mark.parametrize("mode", ["captured", "ge"])
def test_a_second_process_compiles_nothing(mode, tmp_path):
    """Numbers of eager in both."""
    first, second = start(mode, tmp_path), start(mode, tmp_path)
    assert (first["compiled"], first["loaded"]) == (PIECES, 0)
    assert (second["compiled"], second["loaded"]) == (0, PIECES)
    assert max(first["worst"], second["worst"]) < 1e-5


def test_a_piece_that_was_damaged_is_refused(tmp_path):
    start("captured", tmp_path)
    piece = tmp_path / "piece_2.json"
    piece.write_text(piece.read_text()[:-200])
    with pytest.raises(Exception, match="GE50"):
        start("captured", tmp_path)
