"""``torch.compiler.save_cache_artifacts`` and ``load_cache_artifacts`` carry the entries of the compile cache."""

import shutil

import pytest
import torch

import torchair
from ge_graph.errors import ArchiveError
from torchair.artifact import bundle
from torchair.artifact.cache import take_from_bundle
from torchair.config.compiler_config import captured_config

pytestmark = pytest.mark.skipif(
    not hasattr(torch.compiler, "save_cache_artifacts"), reason="this torch has no bundles of cache entries"
)


def run(config):
    torch._dynamo.reset()
    call = torch.compile(lambda x: (x + 1, x.t()), backend=torchair.get_npu_backend(compiler_config=config()))
    with torch.no_grad(), torchair.record_compilation() as reports:
        result = call(torch.ones(2, 3))
    return reports[0].fx_nodes, result


@pytest.fixture
def told(monkeypatch):
    seen = []
    monkeypatch.setattr(torchair.logger, "tell", lambda text, *args: seen.append(text % args))
    return seen


@pytest.mark.parametrize("config", [torchair.CompilerConfig, lambda: captured_config({})], ids=("GE", "captured"))
def test_a_bundle_makes_another_folder_as_good(config, tmp_path, monkeypatch, told):
    from torch.compiler._cache import CacheArtifactManager

    with CacheArtifactManager.with_fresh_cache():
        monkeypatch.setenv("TORCHAIR_CACHE_DIR", str(tmp_path / "a"))
        nodes, want = run(config)
        assert nodes > 0
        content, info = torch.compiler.save_cache_artifacts()
        assert len(info.artifacts[bundle.KIND]) == 1
        monkeypatch.setenv("TORCHAIR_CACHE_DIR", str(tmp_path / "b"))
        torch.compiler.load_cache_artifacts(content)
        nodes, got = run(config)
        assert nodes == 0
        torch.testing.assert_close(got, want)
        # what was only read is carried further
        assert len(torch.compiler.save_cache_artifacts()[1].artifacts[bundle.KIND]) == 1
    assert not told


def entry(tmp_path, monkeypatch):
    monkeypatch.setenv("TORCHAIR_CACHE_DIR", str(tmp_path / "a"))
    run(torchair.CompilerConfig)
    (manifest,) = (tmp_path / "a" / "traced").rglob("graph.manifest.json")
    return manifest.parent, bundle.pack(manifest.parent)


def test_what_is_no_entry_is_left_out_and_told(tmp_path, monkeypatch, told):
    _, content = entry(tmp_path, monkeypatch)
    monkeypatch.setenv("TORCHAIR_CACHE_DIR", str(tmp_path / "b"))
    bad = (b"", content[:-40], content.replace(b"graph.air", b"../ph.air"), content.replace(b'"form"', b'"mrof"'))
    for each in bad:
        take_from_bundle("traced/00/00", each)
    take_from_bundle("../../elsewhere", content)
    assert len(told) == len(bad) + 1
    assert all("an entry of torchair is left out" in text for text in told)
    assert not (tmp_path / "b").exists()


def test_without_a_folder_entries_are_left_out_and_that_is_told(tmp_path, monkeypatch, told):
    _, content = entry(tmp_path, monkeypatch)
    monkeypatch.delenv("TORCHAIR_CACHE_DIR")
    take_from_bundle("traced/00/00", content)
    assert told == ["load_cache_artifacts: entries of torchair are left out, for TORCHAIR_CACHE_DIR names no folder"]


def test_the_place_of_an_entry_follows_from_what_it_depends_on(tmp_path, monkeypatch, told):
    folder, content = entry(tmp_path, monkeypatch)
    shutil.rmtree(tmp_path / "a")
    take_from_bundle("traced/ff/a place of somebody", content)
    assert [p.parent for p in (tmp_path / "a").rglob("graph.manifest.json")] == [folder]
    assert not told


def test_packed_archives_are_checked(tmp_path):
    for content in (b"", b"PK", b"x" * 100):
        with pytest.raises(ArchiveError, match="GE5021"):
            bundle.unpack(content, tmp_path)
