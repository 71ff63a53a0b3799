"""The configuration tree: every option takes what its row allows and refuses everything else."""

import copy
import json
import os
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ge_graph.errors import ConfigError
from ge_graph.option_levels import LEVELS, table
from torchair.config.compiler_config import CompilerConfig, GraphExConfig, OptionValue, find, with_options
from torchair.config.options import CONFLICTS, GRAPH_EX, OPTIONS, markdown

PLAIN = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(allow_nan=False),
    st.text(max_size=20),
    st.binary(),
    st.lists(st.integers(), max_size=3),
    st.dictionaries(st.text(max_size=3), st.integers(), max_size=2),
    st.tuples(st.integers()),
    st.just(len),
)
CHOICES = {row.path: row for row in OPTIONS if row.kind == "choice"}


def allowed_by_row(row, value):
    """The row's own words, checked without the value classes."""
    if value is row.default:
        return True
    if row.kind == "choice" and type(value) is int and value in (0, 1) and not any(type(c) is int for c in row.choices):
        return bool(value) in row.choices  # 0 and 1 are taken for a switch's False and True
    if row.kind == "choice":
        return any(type(value) is type(c) and value == c for c in row.choices)
    if row.kind == "int":
        return type(value) is int and row.low <= value <= row.high and value not in row.holes
    if row.kind == "callable":
        return callable(value)
    return {"dict": dict, "tuple": tuple}[row.kind] is type(value)


@given(row=st.sampled_from([r for r in OPTIONS if r.kind in ("choice", "int", "callable")]), value=PLAIN)
def test_an_option_takes_exactly_what_its_row_allows(row, value):
    config = CompilerConfig()
    option = find(config, row.path)
    before = option.value  # the environment may have set it
    if allowed_by_row(row, value):
        option.value = value
        assert option.value == value
    else:
        with pytest.raises(ConfigError) as caught:
            option.value = value
        assert caught.value.code in ("GE1002", "GE1003", "GE1004")
        assert f"config.{row.path}" in str(caught.value)
        assert "allowed" in str(caught.value)
        assert option.value == before


@given(
    row=st.sampled_from([r for r in GRAPH_EX if r.kind in ("choice", "int", "callable", "dict", "tuple")]), value=PLAIN
)
def test_flat_options_follow_their_rows_too(row, value):
    config = GraphExConfig()
    if allowed_by_row(row, value):
        setattr(config, row.path, value)
        assert getattr(config, row.path).value == value
    else:
        with pytest.raises(ConfigError):
            setattr(config, row.path, value)


@pytest.mark.parametrize("path", CHOICES)
def test_every_choice_can_be_set_both_ways(path):
    for choice in CHOICES[path].choices:
        config = CompilerConfig()
        *groups, leaf = path.split(".")
        group = config
        for name in groups:
            group = getattr(group, name)
        setattr(group, leaf, choice)
        assert getattr(group, leaf).value == choice
        again = CompilerConfig()
        find(again, path).value = choice
        assert find(again, path) == choice


def test_plain_assignment_and_value_are_the_same_option():
    config = CompilerConfig()
    config.mode.value = "reduce-overhead"
    assert config.mode.value == "reduce-overhead"
    config.mode = "max-autotune"
    assert config.mode.value == "max-autotune"
    assert isinstance(config.mode, OptionValue)


def test_last_write_wins():
    config = CompilerConfig()
    config.debug.graph_dump.type = "py"
    config.debug.graph_dump.type = "txt"
    assert config.debug.graph_dump.type.value == "txt"


def test_configurations_are_independent():
    one, two = CompilerConfig(), CompilerConfig()
    one.ge_config.aicore_num = "24|48"
    assert two.ge_config.aicore_num.value is None
    copied = copy.deepcopy(one)
    copied.ge_config.aicore_num = "8|8"
    assert one.ge_config.aicore_num.value == "24|48"


@pytest.mark.parametrize(
    ("write", "code", "hint"),
    [
        (lambda c: setattr(c, "mod", "x"), "GE1001", "config.mode"),
        (lambda c: setattr(c.debug, "graphdump", 1), "GE1001", "config.debug.graph_dump"),
        (lambda c: c.debug.graph_dump.typ, "GE1001", "config.debug.graph_dump.type"),
        (lambda c: setattr(c, "frozen_parameter", True), "GE1001", "config.experimental_config.frozen_parameter"),
        (lambda c: setattr(c, "mode", "max-autotun"), "GE1002", "'max-autotune'"),
        (lambda c: setattr(c, "debug", True), "GE1009", "run_eagerly"),
        (lambda c: setattr(c.ge_config, "aicore_num", "|24"), "GE1006", "24|48"),
        (lambda c: setattr(c.ge_config, "aicore_num", "0|4"), "GE1006", "24|48"),
        (lambda c: setattr(c.ge_config, "optimization_switch", "A=on"), "GE1006", "PassA:on"),
        (lambda c: setattr(c.dump_config, "dump_step", "0-"), "GE1006", "0|3-5|10"),
        (lambda c: setattr(c.dump_config, "dump_step", 3), "GE1003", "0|3-5|10"),
        (lambda c: setattr(c.debug.graph_dump, "path", f"{__file__}/folder"), "GE1005", "cannot be made"),
        (lambda c: setattr(c.debug.graph_dump, "path", "a\0b"), "GE1005", "cannot be made"),
        (lambda c: setattr(c.debug.graph_dump, "path", 3), "GE1003", "folder"),
        (lambda c: setattr(c.experimental_config, "static_model_ops_lower_limit", 2**63), "GE1004", str(2**63 - 1)),
        (lambda c: setattr(c.experimental_config, "static_model_ops_lower_limit", True), "GE1003", "int"),
    ],
)
def test_refusals_name_path_and_way_out(write, code, hint):
    with pytest.raises(ConfigError) as caught:
        write(CompilerConfig())
    assert caught.value.code == code
    assert hint in str(caught.value)


def test_unknown_names_behave_as_attributes():
    config = CompilerConfig()
    assert not hasattr(config, "nonsense")
    assert "nonsense" not in config
    assert "debug" in config
    assert getattr(config.debug, "nonsense", 7) == 7


def test_old_places_are_the_new_option():
    config = CompilerConfig()
    config.experimental_config.enable_single_stream = True
    assert config.ge_config.enable_single_stream.value is True
    config.debug.graph_dump.dtype = "txt"
    assert config.debug.graph_dump.type.value == "txt"
    config.aoe_config.aoe_mode = "2"
    assert config.ge_options()["ge.jobType"] == "2"


def test_ge_keys_and_texts():
    config = CompilerConfig()
    always = config.ge_options()
    assert always["ge.topoSortingMode"] == "1"
    assert always["ge.jit_compile"] == "2"
    assert always["ge.exec.atomicCleanPolicy"] == "1"
    assert "ge.oo.level" not in always
    config.experimental_config.topology_sorting_strategy = "StableRDFS"
    config.ge_config.oo_constant_folding = False
    config.ge_config.enable_single_stream = True
    config.ge_config.optimization_switch = "AutomaticUbFusion:off"
    config.experimental_config.static_model_ops_lower_limit = -1
    changed = config.ge_options()
    assert changed["ge.topoSortingMode"] == "3"
    assert changed["ge.oo.constantFolding"] == "false"
    assert changed["ge.enableSingleStream"] == "true"
    assert changed["ge.optimizationSwitch"] == "AutomaticUbFusion:off"
    assert changed["ge.exec.static_model_ops_lower_limit"] == "-1"
    parts = [config.ge_options(level) for level in LEVELS]
    assert sum(map(len, parts)) == len(changed)
    assert {k: v for part in parts for k, v in part.items()} == changed
    assert {"ge.oo.constantFolding", "ge.enableSingleStream", "ge.optimizationSwitch"} <= set(parts[2])


def test_every_ge_key_is_one_that_ge_knows():
    engine = {row.ge_key for row in OPTIONS if row.ge_key and row.ge_level == "engine"}
    assert engine == {"ge_dump_with_acl_config"}  # for the runtime, not for GE


@pytest.mark.parametrize("text", ["24|48", "24|", "24"])
def test_core_limits_of_chips_with_one_kind_of_core(text):
    config = CompilerConfig()
    config.ge_config.aicore_num = text
    assert config.ge_options("session") == {"ge.aicoreNum": text}


@pytest.mark.parametrize("limit", [-1, 0, 1, 2])
def test_limit_of_static_parts(limit):
    config = CompilerConfig()
    config.experimental_config.static_model_ops_lower_limit = limit
    assert config.ge_options("graph")["ge.exec.static_model_ops_lower_limit"] == str(limit)


def test_values_of_the_options_are_those_that_ge_lists():
    """Every text that a choice sends stands in GE's own list of values where that list is a plain one."""
    checked = 0
    for row in OPTIONS:
        facts = table().get(row.ge_key)
        if facts is None or row.kind != "choice" or not re.fullmatch(r"[\w|, ]+", facts.values):
            continue
        known = {v for v in re.split(r"[|, ]+", facts.values) if v}
        sent = {row.ge_values[v] if row.ge_values else str(v) for v in row.choices if v is not None}
        assert sent <= known, (row.path, sent, known)
        checked += 1
    assert checked > 20


def test_dump_keys_travel_together(tmp_path):
    config = CompilerConfig()
    config.dump_config.dump_path = str(tmp_path)
    config.dump_config.dump_layer = "Add_1 MatMul"
    assert not any(k.startswith("ge.exec.dump") for k in config.ge_options())
    config.dump_config.enable_dump = True
    sent = config.ge_options()
    assert sent["ge.exec.enableDump"] == "1"
    assert sent["ge.exec.dumpPath"] == str(tmp_path)
    assert sent["ge.exec.dumpLayer"] == "Add_1 MatMul"
    assert "ge.exec.dumpStep" not in sent


def test_option_map_holds_plain_values_and_leaves_fixed_attributes_out():
    config = CompilerConfig()
    config.post_grad_custom_pre_pass = lambda gm, inputs, config: None
    assert "post_grad_custom_pre_pass" in config._fixed_attrs
    flat = config.as_dict()
    assert "post_grad_custom_pre_pass" not in flat
    assert flat["mode"] == "max-autotune"
    json.dumps(flat)
    config._fixed_attrs.append("mode")
    assert "mode" not in config.as_dict()


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "not JSON"),
        ("[]", "no JSON object"),
        ("{}", "'Switch'"),
        ('{"Switch": {"Graph": {}}}', "GraphFusion"),
        ('{"Switch": {"UBFusion": {"ALL": "no"}}}', "'on' and 'off'"),
    ],
)
def test_damaged_fusion_switch_files_are_refused(tmp_path, content, why):
    file = tmp_path / "switch.cfg"
    file.write_text(content)
    with pytest.raises(ConfigError) as caught:
        CompilerConfig().fusion_config.fusion_switch_file = str(file)
    assert caught.value.code == "GE1007"
    assert why in str(caught.value)


def test_fusion_switch_file_is_passed_on(tmp_path):
    file = tmp_path / "switch.cfg"
    file.write_text(json.dumps({"Switch": {"GraphFusion": {"ALL": "off", "SoftmaxFusionPass": "on"}, "UBFusion": {}}}))
    config = CompilerConfig()
    config.fusion_config.fusion_switch_file = file
    assert config.ge_options()["ge.fusionSwitchFile"] == str(file)


@pytest.mark.parametrize(
    "dump",
    [
        {},
        {"dump_path": "/d", "dump_debug": "on", "dump_op_switch": "on"},
        {"dump_path": "/d", "dump_scene": "watcher", "dump_mode": "all"},
        {"dump_path": "/d", "dump_scene": "watcher", "dump_debug": "on"},
    ],
)
def test_dump_descriptions_are_checked(tmp_path, dump):
    file = tmp_path / "dump.json"
    file.write_text(json.dumps({"dump": dump}))
    with pytest.raises(ConfigError, match="GE1007"):
        CompilerConfig().dump_config.dump_config_path = str(file)


def test_contradictions_are_refused_together():
    config = CompilerConfig()
    config.experimental_config.aot_config_output_loss_index = 0
    config.export.export_mode = True
    config.debug.run_eagerly = True
    with pytest.raises(ConfigError) as caught:
        config.check()
    assert caught.value.code == "GE1008"
    assert "aot_config_enable_joint_graph" in str(caught.value)
    assert "run_eagerly" in str(caught.value)


@pytest.mark.parametrize("conflict", CONFLICTS, ids=lambda c: f"{c.one[0]}-{c.other[0]}")
def test_every_conflict_names_real_options(conflict):
    config = CompilerConfig()
    for path, value in (conflict.one, conflict.other):
        option = find(config, path)
        assert value is ... or value == option.default or option.check(value) == value


@pytest.mark.parametrize(
    "row", [r for r in OPTIONS if r.effective == "later" and r.kind == "choice"], ids=lambda r: r.path
)
def test_options_without_effect_yet_are_refused_not_ignored(row):
    config = CompilerConfig()
    other = next(c for c in row.choices if c != row.default)
    find(config, row.path).value = other
    with pytest.raises(ConfigError) as caught:
        config.check()
    assert caught.value.code in ("GE1010", "GE1008")
    assert row.path in str(caught.value)


def test_device_options_are_listed():
    config = CompilerConfig()
    assert config.only_on_a_device() == []
    config.ge_config.oo_level = "O1"
    assert config.only_on_a_device() == ["ge_config.oo_level = 'O1'"]
    config.check()


def test_a_subclass_may_add_an_option():
    class Mine(CompilerConfig):
        def __init__(self):
            super().__init__()
            self.extra = OptionValue("a", ["a", "b"])
            self._fixed_attrs.append("extra")

    config = Mine()
    config.extra = "b"
    assert config.extra.value == "b"
    with pytest.raises(ConfigError, match=r"config\.extra"):
        config.extra = "c"


def test_docs_are_up_to_date():
    here = os.path.dirname(__file__)
    file = os.path.join(here, "..", "..", "..", "docs", "options.md")
    if not os.path.isfile(file):
        pytest.skip("installed without the repository's docs")
    with open(file, encoding="utf-8") as text:
        assert text.read() == markdown(), "run python -m torchair.config.options"


def test_rows_are_sound():
    paths = [r.path for r in OPTIONS]
    assert len(set(paths)) == len(paths)
    for row in (*OPTIONS, *GRAPH_EX):
        assert row.here, row.path
        assert row.effective != "device" or row.device, row.path
        assert not row.ge_values or row.kind == "choice", row.path
        if row.ge_values:
            assert set(row.ge_values) >= {c for c in row.choices if c is not None}, row.path


@pytest.mark.unverified
def test_repr_shows_what_was_changed():
    config = CompilerConfig()
    assert repr(config) == "CompilerConfig()"
    config.ge_config.oo_level = "O1"
    assert repr(config) == "CompilerConfig(ge_config.oo_level='O1')"
    assert repr(config.mode) == "'max-autotune'"


ELSEWHERE = {
    "experimental_config.keep_inference_input_mutations": ("experimental_config.keep_inference_input_mutation", False),
    "debug.aclgraph.clone_input": ("aclgraph_config.clone_input", False),
    "debug.aclgraph.clone_output": ("aclgraph_config.clone_output", True),
    "experimental_config.aclgraph._aclnn_static_shape_kernel": ("aclgraph_config.static_kernel_compile", True),
    "experimental_config.aclgraph._aclnn_static_shape_kernel_build_dir": (
        "aclgraph_config._aclnn_static_shape_kernel_build_dir",
        "./",
    ),
    "experimental_config.aclgraph._aclnn_static_shape_kernel_sym_value_range": (
        "aclgraph_config._vllm_aclnn_static_kernel_sym_range",
        [1, 2],
    ),
    "experimental_config.aclgraph._super_kernel_optimize": ("aclgraph_config.super_kernel_optimize", True),
    "aclgraph_config.use_custom_pool": ("aclgraph_config.use_graph_pool", (0, 1)),
}
OPPOSITE = {
    "debug.aclgraph.disable_reinplace_inplaceable_ops_pass": "aclgraph_config.inplace_pass",
    "debug.aclgraph.disable_reinplace_input_mutated_ops_pass": "aclgraph_config.input_inplace_pass",
}


def put(config, path, value):
    *groups, leaf = path.split(".")
    for name in groups:
        config = getattr(config, name)
    setattr(config, leaf, value)


@pytest.mark.parametrize("path", ELSEWHERE)
def test_older_places(path):
    config = CompilerConfig()
    home, value = ELSEWHERE[path]
    put(config, path, value)
    assert find(config, home).value == value
    assert path.rpartition(".")[0] not in ("debug.aclgraph", "experimental_config.aclgraph") or "aclgraph." not in repr(
        config
    ).replace("aclgraph_config.", "")


@pytest.mark.parametrize("path", OPPOSITE)
def test_older_switches_that_turn_off(path):
    config = CompilerConfig()
    assert find(config, path).value is False
    put(config, path, True)
    assert find(config, OPPOSITE[path]).value is False
    assert find(config, path).value is True
    with pytest.raises(ConfigError, match=f"GE1002.*{path}"):
        put(config, path, "yes")


def test_switches_take_0_and_1():
    config = CompilerConfig()
    config.experimental_config.frozen_parameter = 1
    assert config.experimental_config.frozen_parameter.value is True
    config.experimental_config.frozen_parameter = 0
    assert config.experimental_config.frozen_parameter.is_default
    with pytest.raises(ConfigError, match="GE1002"):
        config.experimental_config.frozen_parameter = 2
    config.aoe_config.aoe_mode = "1"
    config.ge_config.optimization_switch = "In-placeAddRmsNormFusionPass:off"


def test_profilers_find_no_older_form():
    """They ask for ``_path`` to tell an older form of the option from this one."""
    dump = CompilerConfig().debug.graph_dump
    assert not hasattr(dump, "_path")
    assert not hasattr(dump, "_type")


@pytest.mark.parametrize(
    ("options", "path", "value"),
    [
        ({"experimental_config.frozen_parameter": True}, "experimental_config.frozen_parameter", True),
        ({"topology_sorting_strategy": "BFS"}, "experimental_config.topology_sorting_strategy", "BFS"),
        ({"mode": "reduce-overhead", "clone_input": False}, "aclgraph_config.clone_input", False),
        ({"mode": "reduce-overhead", "frozen_parameter": True}, "aclgraph_config.frozen_parameter", True),
        ({"frozen_parameter": True}, "experimental_config.frozen_parameter", True),
    ],
)
def test_options_over_a_configuration(options, path, value):
    config = CompilerConfig()
    config.debug.run_eagerly = True
    made = with_options(config, options)
    assert find(made, path).value == value
    assert made.debug.run_eagerly.value is True
    assert find(config, path).is_default


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"nothing": 1}, "GE1001"),
        ({"clone_input": 3}, "GE1002"),
        (3, "GE1011"),
        ({3: 4}, "GE1011"),
        ({"type": "txt"}, "GE1001"),
    ],
)
def test_wrong_options_over_a_configuration(options, code):
    with pytest.raises(ConfigError, match=code):
        with_options(CompilerConfig(), options)


def test_a_folder_that_is_missing_is_made(tmp_path):
    config = CompilerConfig()
    config.debug.graph_dump.path = str(tmp_path / "dumps" / "rank0")
    config.dump_config.dump_path = str(tmp_path / "values")
    assert (tmp_path / "dumps" / "rank0").is_dir()
    assert (tmp_path / "values").is_dir()


def test_names_of_captured_graphs_below_debug_mean_the_flat_ones():
    config = CompilerConfig()
    config.debug.aclgraph.static_capture_size_limit = 3
    config.debug.aclgraph.disable_mempool_reuse_in_same_fx = True
    config.debug.aclgraph.remove_cat_ops = False
    flat = config.aclgraph_config
    assert (flat.capture_limit.value, flat.reuse_graph_pool_in_same_fx.value, flat.remove_cat_ops.value) == (
        3,
        False,
        False,
    )
