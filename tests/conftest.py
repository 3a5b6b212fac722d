"""What holds for every test: no network, one thread a library, reproducible hypothesis."""

from __future__ import annotations

import os
import socket
from typing import Any

import pytest
from beartype import BeartypeConf
from beartype.claw import beartype_packages
from hypothesis import HealthCheck, settings

# Under test every annotation of the numeric packages is checked when it is called (jaxtyping's shapes too).
CHECKED = (
    "broaden.metrics",
    "broaden.ledger",
    "broaden.perturb",
    "broaden.es",
    "broaden.grpo",
    "broaden.sft",
)
beartype_packages(
    CHECKED,
    conf=BeartypeConf(
        is_pep484_tower=True,  # an int is a float, as for mypy
        # Numba and Triton compile them: they must stay as written
        claw_skip_package_names=(
            "broaden.perturb.kernels",
            "broaden.perturb.lowrank_kernels",
            "broaden.perturb.triton_path",
        ),
    ),
)

for _variable in ("HF_HUB_OFFLINE", "HF_HUB_DISABLE_TELEMETRY"):
    os.environ.setdefault(_variable, "1")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
os.environ.setdefault("OMP_NUM_THREADS", "1")

# The same examples every time; a failing one prints how to run it again. No deadline: machines are shared.
settings.register_profile(
    "broaden",
    deadline=None,
    derandomize=True,
    print_blob=True,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("broaden")

_LOCAL = ("127.", "::1", "localhost", "0.0.0.0")


@pytest.fixture(autouse=True)
def _no_network(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """A connection to another machine is an error, except in tests marked `network`."""
    if request.node.get_closest_marker("network") is None:
        connect = socket.socket.connect

        def guarded(self: socket.socket, address: Any) -> None:
            if isinstance(address, tuple) and not str(address[0]).startswith(_LOCAL):
                raise OSError(f"a test reached for the network ({address[0]}); mark it `network` if it must")
            connect(self, address)

        monkeypatch.setattr(socket.socket, "connect", guarded)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Tests marked `gpu` are skipped with a reason where there is no CUDA device (see tests/helpers/gpu.py)."""
    wants_gpu = [item for item in items if item.get_closest_marker("gpu")]
    if not wants_gpu or os.environ.get("BROADEN_GPU_REHEARSAL") == "1":
        return
    import torch

    if not torch.cuda.is_available():
        for item in wants_gpu:
            item.add_marker(pytest.mark.skip(reason="no CUDA device"))
