"""Templates of the JSON files that ATC wants for models split over devices.

Everything is put on node 0 of cluster 0, one device a rank; the user spreads it over the real nodes and fills in the
types of the machine. Keys are those of ATC's ``--model_relation_config`` and ``--cluster_config``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any


def model_relation(name: str, ranks: int, groups: Mapping[str, Sequence[int]]) -> bytes:
    """``model_relation_config.json``: which file runs where, and who talks to whom.

    Args:
        name: ``export_name``; files are ``<name><rank>.air``.
        groups: Communication group to its ranks.
    """
    files = [f"{name}{r}.air" if ranks > 1 else f"{name}.air" for r in range(ranks)]
    return _json(
        {
            "deploy_config": [{"submodel_name": f, "deploy_device_id_list": f"0:0:{r}"} for r, f in enumerate(files)],
            "model_name_to_instance_id": [{"submodel_name": f, "model_instance_id": r} for r, f in enumerate(files)],
            "comm_group": [{"group_name": g, "group_rank_list": str(list(members))} for g, members in groups.items()],
            "rank_table": [{"rank_id": r, "model_instance_id": r} for r in range(ranks)],
        }
    )


def numa(ranks: int) -> bytes:
    """``numa_config.json``: the logical topology, one node with a device a rank."""
    kind, item = "<node type>", "<device type>"
    node = {
        "node_id": 0,
        "node_type": kind,
        "is_local": True,
        "ipaddr": "127.0.0.1",
        "item_list": [{"item_id": r, "device_id": r} for r in range(ranks)],
    }
    nodes = {
        "node_type": kind,
        "resource_type": "<X86 or Aarch>",
        "support_links": "[HCCS,PCIE,ROCE]",
        "item_type": item,
        "inter_item_memory_access_mode": "<NUMA or UMA>",
        "item_topology": {},
    }
    items = {
        "item_type": item,
        "resource_type": "Ascend",
        "memory": "[DDR:64GB]",
        "aic_type": "[DAVINCI_V100:32]",
    }
    cluster = {"cluster_id": 0, "cluster_nodes": [node], "nodes_topology": {}}
    return _json({"cluster": [cluster], "node_def": [nodes], "item_def": [items]})


def _json(value: Any) -> bytes:
    return (json.dumps(value, indent=4) + "\n").encode()
