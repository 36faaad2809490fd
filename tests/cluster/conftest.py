"""One local Ray per test session, started by the first test that asks for it; servers of ours on it, one per module or test."""

import contextlib
import gc
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from ray_node import Node


@pytest.fixture(scope="session")
def local_ray(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A connected Ray, with the settings of the embedded start."""
    from actors.cluster import ray_environment

    data = tmp_path_factory.mktemp("ray")
    ray_environment.set_variables(ray_environment.embedded_variables(ray_environment.token_file(data)))
    ray_environment.make_packages_importable()
    import ray

    root = ray_environment.temp_root()
    ray_environment.remove_dead_sessions(root)
    with contextlib.chdir(data), ray_environment.without_helpers():
        ray.init(**ray_environment.embedded_arguments(root))
    yield
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ResourceWarning)  # Ray does not wait for its own processes
        ray.shutdown()
        gc.collect()


@pytest.fixture(scope="module")
def node(local_ray: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator["Node"]:
    """A server for the tests of one module; they use names of their own."""
    from ray_node import serving

    with serving(tmp_path_factory.mktemp("data")) as found:
        yield found
