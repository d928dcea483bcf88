"""Start the control plane: certificates, etcd, API server and controllers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

from tests.harness import control_config, kubeconfig, network, node_config, paths, processes
from tests.harness.api import Api, cluster_role, role_binding
from tests.harness.binaries import Tools
from tests.harness.pki import Authority
from tests.harness.processes import Service
from tests.harness.run import Figures

APISERVER: Final = "kube-apiserver"
CONTROLLER_MANAGER: Final = "kube-controller-manager"
_START_LIMIT_S: Final = 60.0
_RESTART_LOOP: Final = (
    "trap 'kill $child; wait $child; exit' TERM;"
    ' while :; do "$@" & child=$!; wait $child; sleep 1; done'
)
_RBAC: Final = "/apis/rbac.authorization.k8s.io/v1"
_KUBELET_CLIENT: Final = "kube-apiserver"
_DNS_USER: Final = "ddp-harness:coredns"
_DNS_RULES: Final = [
    {
        "apiGroups": [""],
        "resources": ["services", "pods", "namespaces", "endpoints"],
        "verbs": ["list", "watch"],
    },
    {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["list", "watch"],
    },
]


@dataclass
class ControlPlane:
    """The processes of every cluster.

    Attributes:
        tools: The binaries.
        authority: The authority that signs all certificates.
        nodes: Number of nodes that the cluster will have.
        extra: Further arguments by process name, which override the harness's own.
    """

    tools: Tools
    authority: Authority
    nodes: int
    extra: Mapping[str, Sequence[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Issue the administrator's certificate, which the harness uses too."""
        admin = self.authority.issue("admin", "admin", ["system:masters"])
        kubeconfig.write(paths.STATE / "kubeconfig.yaml", self.authority, admin)
        self.api = Api(self.authority, admin)

    def start_store_and_server(self) -> None:
        """Start etcd and the API server, which waits for etcd."""
        names = ["kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost"]
        full = f"kubernetes.default.svc.{paths.CLUSTER_DOMAIN}"
        addresses = ["127.0.0.1", paths.API_ADDRESS, paths.API_SERVICE_ADDRESS]
        self.authority.issue("apiserver", _KUBELET_CLIENT, server_names=[*names, full, *addresses])
        self.authority.issue("apiserver-to-kubelet", _KUBELET_CLIENT)
        self.authority.issue(control_config.AGGREGATOR, control_config.AGGREGATOR)
        _write_config("audit.yaml", control_config.audit_policy())
        self._start("etcd", control_config.etcd())
        self._start(APISERVER, control_config.apiserver())

    def start_controllers(self, figures: Figures) -> None:
        """Wait for the API server, then start its clients."""
        with figures.phase("API server ready"):
            wait_for_apiserver(self.api)
        self._client(CONTROLLER_MANAGER, "system:kube-controller-manager")
        arguments = control_config.controller_manager(nodes=self.nodes > 0)
        self._start_in_loop(CONTROLLER_MANAGER, arguments)
        if self.nodes:
            self._start_for_pods()

    def wait(self) -> None:
        """Wait until namespaces get a service account and pods can use Services and DNS names.

        Raises:
            HarnessError: A process ended or took too long.
        """
        self._await(
            "the default service account",
            lambda: self.api.get("/api/v1/namespaces/default/serviceaccounts/default") is not None,
            CONTROLLER_MANAGER,
        )
        if self.nodes:
            name = f"kubernetes.default.svc.{paths.CLUSTER_DOMAIN}"
            self._await("the cluster's DNS", lambda: network.resolves(name), "coredns")
            service = paths.API_SERVICE_ADDRESS
            self._await("Services", lambda: network.reachable(service, 443), "kube-proxy")

    def start_scheduler(self) -> None:
        """Start the scheduler. A cluster with real nodes has one already."""
        config = self._client("kube-scheduler", "system:kube-scheduler")
        _write_config("scheduler.yaml", control_config.scheduler_config(config))
        self._start_in_loop("kube-scheduler", control_config.scheduler())

    def start_kwok(self) -> None:
        """Start kwok, which plays the kubelets of all nodes."""
        pair = self.authority.issue("kwok", "kwok", ["system:masters"])
        file = paths.STATE / "kubeconfigs" / "kwok.yaml"
        kubeconfig.write(file, self.authority, pair)
        self._start("kwok", control_config.kwok(file))

    def _start_for_pods(self) -> None:
        binding = role_binding("system:kubelet-api-admin", _KUBELET_CLIENT)
        self.api.create(f"{_RBAC}/clusterrolebindings", binding)
        self.api.create(f"{_RBAC}/clusterroles", cluster_role(_DNS_USER, _DNS_RULES))
        self.api.create(f"{_RBAC}/clusterrolebindings", role_binding(_DNS_USER, _DNS_USER))
        _write_config("resolv.conf", f"nameserver {paths.API_ADDRESS}\n")
        self.start_scheduler()
        proxy = self._client("kube-proxy", "system:kube-proxy")
        config = _write_config("kube-proxy.yaml", node_config.kube_proxy(proxy))
        self._start("kube-proxy", [f"--config={config}"])
        dns = self._client("coredns", _DNS_USER)
        config = _write_config("Corefile", node_config.corefile(dns))
        self._start("coredns", ["-conf", config])

    def _client(self, name: str, user: str) -> str:
        """Write a kubeconfig for a process; return its path."""
        pair = self.authority.issue(name, user)
        file = paths.STATE / "kubeconfigs" / f"{name}.yaml"
        return str(kubeconfig.write(file, self.authority, pair))

    def _start(self, name: str, arguments: Sequence[str]) -> None:
        argv = (self.tools.binary(name), *arguments, *self.extra.get(name, ()))
        Service(name=name, argv=argv, search_path=self.tools.search_path).start()

    def _start_in_loop(self, name: str, arguments: Sequence[str]) -> None:
        """Start a process in a loop, as a kubelet does, because it exits by design.

        The scheduler exits when its cache is wrong. The controller manager exits when the API
        server does not answer for 10 s while it starts.
        """
        program = (str(self.tools.binary(name)), *arguments, *self.extra.get(name, ()))
        argv = ("/bin/sh", "-c", _RESTART_LOOP, "sh", *program)
        Service(name=name, argv=argv, search_path=self.tools.search_path).start()

    def _await(self, what: str, ready: Callable[[], bool], needs: str) -> None:
        processes.wait_for(what, ready, deadline_s=_START_LIMIT_S, needs=(needs,))


def wait_for_apiserver(api: Api) -> None:
    """Wait until the API server reports that it is ready.

    Raises:
        HarnessError: The API server or etcd ended, or the wait took too long.
    """
    processes.wait_for(
        "the API server", api.ready, deadline_s=_START_LIMIT_S, needs=(APISERVER, "etcd")
    )


def _write_config(name: str, text: str) -> str:
    file = paths.STATE / "config" / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(text, encoding="utf-8")
    return str(file)
