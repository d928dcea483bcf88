"""Specs with each variant of the placement and network fields, which all policies allow."""

from typing import Any

from ddp_operator.api.network import NetworkProfile

JSON = dict[str, Any]

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_OWN = {
    "nodeAffinity": {
        _REQUIRED: {
            "nodeSelectorTerms": [
                {"matchExpressions": [{"key": "pool", "operator": "Exists"}]},
                {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["a"]}]},
            ]
        }
    }
}
_ALL: JSON = {
    "topology": {"key": "rack", "mode": "Required"},
    "gpusPerNode": 8,
    "gpuProduct": "NVIDIA-L4",
    "exclusiveNodes": True,
}
PLACED: dict[str, JSON] = {
    "required topology": {"topology": {"key": "example.com/rack", "mode": "Required"}},
    "preferred topology": {"topology": {"key": "topology.kubernetes.io/zone"}},
    "GPU product": {"gpusPerNode": 8, "gpuProduct": "NVIDIA-H100-80GB-HBM3"},
    "exclusive nodes": {"exclusiveNodes": True},
    "all placement": _ALL,
    **{
        f"network profile {profile}": {"network": {"profile": profile.value}}
        for profile in NetworkProfile
    },
}
"""Specs without a podTemplate."""
PLACED_WITH_TEMPLATE: dict[str, JSON] = {
    "all placement beside an affinity": {**_ALL, "podTemplate": {"spec": {"affinity": _OWN}}},
}
"""Specs whose podTemplate has a part of the same field."""
