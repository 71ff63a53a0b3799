"""Every error class of every package survives what workers, pools and debuggers do with errors."""

from __future__ import annotations

import copy
import importlib
import pickle
import pkgutil

import pytest

from ge_graph.errors import GeError
from ge_graph.ir import Graph
from ge_graph.verify import VerifyError, Violation

PACKAGES = ("ge_graph", "ge_converters", "ge_runtime", "tair_debug", "tair_export", "torchair")


def _classes(base: type[GeError] = GeError) -> list[type[GeError]]:
    return [base, *(c for direct in base.__subclasses__() for c in _classes(direct))]


def _load_all() -> None:
    for name in PACKAGES:
        package = importlib.import_module(name)
        for module in pkgutil.walk_packages(package.__path__, f"{name}."):
            if not module.name.endswith("__main__"):
                try:
                    importlib.import_module(module.name)
                except ImportError:  # an optional dependency; its errors are not raised here either
                    continue


def _made(kind: type[GeError]) -> GeError:
    if kind is VerifyError:
        return VerifyError(Graph("g"), (Violation("GE3010", "broken", "model.py:3"),))
    return kind("GE4005", "what\nhappened", where="model.py:3", next="do this")


def test_every_error_class_survives_pickling_and_copying() -> None:
    _load_all()
    kinds = list(dict.fromkeys(_classes()))
    assert len(kinds) >= 8
    for kind in kinds:
        error = _made(kind)
        error.add_note("seen in epoch 3")
        error.extra = {"more": 1}  # type: ignore[attr-defined]
        for other in (pickle.loads(pickle.dumps(error)), copy.copy(error), copy.deepcopy(error)):
            assert type(other) is kind
            assert vars(other) == vars(error)
            assert (str(other), other.args) == (str(error), error.args)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_every_pickle_protocol(protocol: int) -> None:
    error = pickle.loads(pickle.dumps(_made(VerifyError), protocol))
    assert (error.code, error.next[:9], error.violations[0].where) == ("GE3010", "each line", "model.py:3")
