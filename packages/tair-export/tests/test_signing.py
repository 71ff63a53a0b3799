"""What a signature vouches for is what runs."""

import os
import signal

import numpy as np
import pytest

from ge_graph.errors import ArchiveError
from ge_graph.ir import FileLiteral
from tair_export import CompiledModel
from tair_export.archive import Archive
from tair_export.export import write_graph
from tair_export.signing import sign, signed_by

X = np.linspace(-1, 1, 12, dtype="f4").reshape(3, 4)


@pytest.fixture
def signed(tmp_path, make, small_files, key):
    """A folder with a signed archive, the model, and what asks for the signature."""
    made = make()
    write_graph(made.captured, tmp_path / "a")
    sign(tmp_path / "a", key[0])
    return tmp_path / "a", made, signed_by(key[1])


@pytest.fixture
def no_waiting():
    signal.alarm(30)
    yield
    signal.alarm(0)


def test_files_that_change_after_the_check_change_nothing(signed, monkeypatch):
    """Whoever may write to the files writes into them, in place, as soon as they have been compared."""
    root, made, trusted = signed
    compare = Archive.verify

    def then_overwrite(self, mode):
        compare(self, mode)
        for path in root.rglob("*"):
            if path.is_file():
                path.write_bytes(bytes(path.stat().st_size))

    monkeypatch.setattr(Archive, "verify", then_overwrite)
    model = CompiledModel.load_graph(root, authenticate=trusted)
    np.testing.assert_allclose(model(X)["y"], made.expected(X), rtol=1e-5)


def test_every_file_is_opened_once_and_no_path_is_handed_on(signed, monkeypatch):
    root, _, trusted = signed
    real, opened = os.open, []

    def opening(path, *args, **kwargs):
        opened.append(os.fspath(path))
        return real(path, *args, **kwargs)

    monkeypatch.setattr(os, "open", opening)
    model = CompiledModel.load_graph(root, authenticate=trusted)
    files = [p for p in opened if p.startswith(str(root)) and "manifest.json" not in p]
    assert len(files) == len(set(files)) == 3  # the graph and two weights
    assert not [n for n in model.graph.nodes if isinstance(n.attr("value"), FileLiteral)]
    assert [n for n in CompiledModel.load_graph(root).graph.nodes if isinstance(n.attr("value"), FileLiteral)]


@pytest.mark.parametrize("answer", [False, 0, np.False_])
def test_an_answer_that_is_false_refuses(signed, answer):
    root, _, _ = signed
    with pytest.raises(ArchiveError, match="GE5044.*authenticate returned"):
        CompiledModel.load_graph(root, authenticate=lambda data, path: answer)
    for fine in (None, True):
        CompiledModel.load_graph(root, authenticate=lambda data, path, fine=fine: fine)


def test_a_text_is_part_of_the_signature(tmp_path, make, key):
    for name in ("good", "old"):
        write_graph(make(seed=len(name)).captured, tmp_path / name)
        sign(tmp_path / name, key[0], text=f"{name} model")
    CompiledModel.load_graph(tmp_path / "good", authenticate=signed_by(key[1], text="good model"))
    for asked in ("old model", "good model ", None):
        with pytest.raises(ArchiveError, match="GE5044"):
            CompiledModel.load_graph(tmp_path / "good", authenticate=signed_by(key[1], text=asked))
    sign(tmp_path / "good", key[0])
    with pytest.raises(ArchiveError, match="GE5044.*for 'good model'"):
        CompiledModel.load_graph(tmp_path / "good", authenticate=signed_by(key[1], text="good model"))
    for text in ("", "a\nb", 3, b"x"):
        with pytest.raises(ArchiveError, match="GE5042"):
            sign(tmp_path / "good", key[0], text=text)
        with pytest.raises(ArchiveError, match="GE5042"):
            signed_by(key[1], text=text)


def test_a_signature_beside_a_new_manifest_is_read_again(signed, make, key):
    """A writer saves and signs while the signature of the old manifest is being checked."""
    root, _, trusted = signed
    turns = []

    def overtaken(data, path):
        if not turns:
            turns.append(1)
            write_graph(make(seed=5).captured, root)
            sign(root, key[0])
        trusted(data, path)

    model = CompiledModel.load_graph(root, authenticate=overtaken)
    np.testing.assert_allclose(model(X)["y"], make(seed=5).expected(X), rtol=1e-5)


def test_a_pipe_in_the_place_of_a_signature_is_not_read(signed, no_waiting):
    root, _, trusted = signed
    place = root / "compiled_graph.manifest.json.sig"
    place.unlink()
    os.mkfifo(place)
    with pytest.raises(ArchiveError, match="GE5044.*not a regular file"):
        CompiledModel.load_graph(root, authenticate=trusted)


def test_signing_follows_no_link(signed, tmp_path, key):
    root, _, trusted = signed
    victim = tmp_path / "victim"
    victim.write_text("mine")
    place = root / "compiled_graph.manifest.json.sig"
    place.unlink()
    place.symlink_to(victim)
    (root / f".{place.name}.{os.getpid()}").symlink_to(victim)
    sign(root, key[0])
    assert victim.read_text() == "mine"
    assert not place.is_symlink()
    CompiledModel.load_graph(root, authenticate=trusted)


def test_only_a_manifest_that_lies_there_is_signed(tmp_path, make, key):
    write_graph(make().captured, tmp_path / "a")
    (tmp_path / "b").mkdir()
    manifest = tmp_path / "b" / "compiled_graph.manifest.json"
    manifest.symlink_to(tmp_path / "a" / manifest.name)
    with pytest.raises(ArchiveError, match="GE5044.*not signed"):
        sign(tmp_path / "b", key[0])
    manifest.unlink()
    manifest.write_text("anything")
    with pytest.raises(ArchiveError, match="GE5021"):
        sign(tmp_path / "b", key[0])
    assert list((tmp_path / "b").iterdir()) == [manifest]
