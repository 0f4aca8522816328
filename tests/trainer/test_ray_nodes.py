"""A cluster of two nodes, joined by its address: a node that leaves is named, and the run goes on without it."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from openmanus_rl.trainer.ray_cluster import Cluster, ClusterError, import_ray
from openmanus_rl.trainer.ray_group import RayWorkerGroup
from tests.trainer.ray_runs import ray_run, told

pytestmark = pytest.mark.slow


@pytest.fixture
def nodes() -> Iterator[Any]:
    """Two nodes on this machine; only the second has room for the second environment worker."""
    import_ray()
    from ray.cluster_utils import Cluster as Nodes

    made = Nodes(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
    made.add_node(num_cpus=1)
    made.wait_for_nodes()
    yield made
    made.shutdown()


def test_a_node_that_leaves(
    nodes: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    strikes = []
    publish = RayWorkerGroup.publish_weights

    def published(group: RayWorkerGroup, version: int) -> dict[str, float]:
        metrics = publish(group, version)
        if version == 1 and not strikes:
            strikes.append(version)
            left = next(iter(nodes.worker_nodes))
            nodes.add_node(num_cpus=1)  # another one comes
            nodes.remove_node(left, allow_graceful=False)
        return metrics

    monkeypatch.setattr(RayWorkerGroup, "publish_weights", published)
    ray_run(
        tmp_path, f"trainer.ray_address={nodes.address}", "trainer.n_cpu_workers=1", "trainer.n_env_workers=2",
        "trainer.total_training_steps=3",
    )  # fmt: skip
    assert strikes
    assert "has left the cluster" in capsys.readouterr().err
    assert [line["step"] for line in told(tmp_path)] == [0, 1, 2, 3]
    assert import_ray().is_initialized() is False


def test_a_cluster_that_is_too_small_says_what_to_lower(nodes: Any) -> None:
    with pytest.raises(ClusterError, match="the run asks for 4 CPUs, the cluster has 3 CPUs"):
        Cluster(nodes.address, [{"CPU": 1.0}] * 4, 30.0)
    assert not import_ray().is_initialized()
