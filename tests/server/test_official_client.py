"""The official JavaScript client of npm `agents`, unchanged, against `perdure serve`: the acceptance check that came with the
protocol's description. It is installed from the npm registry; where that cannot be, this says so and is skipped."""

import shutil
import subprocess
from pathlib import Path

import pytest
from serving import Server

CHECK = Path(__file__).parents[1] / "protocol_data" / "client_check.mjs"
PACKAGES = ("agents@0.17.0", "ws@8")


@pytest.fixture(scope="module")
def checker(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The check, in a folder where the official client is installed."""
    folder = tmp_path_factory.mktemp("official-client")
    if shutil.which("npm") is None or shutil.which("node") is None:
        pytest.skip("NOT TESTED against the official client: node and npm are not on this machine")
    command = ["npm", "install", "--legacy-peer-deps", "--no-audit", "--no-fund", *PACKAGES]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=240, check=False)
    if done.returncode:
        pytest.skip("NOT TESTED against the official client: npm cannot install it here")
    return Path(shutil.copy(CHECK, folder))


@pytest.mark.timeout(300)
def test_the_official_client_passes_every_check_unchanged(checker: Path) -> None:
    with Server() as server:
        command = [
            "node",
            str(checker),
            server.host,
            "Conversation",
            "official",
            "--threshold=100000",
            "--expect-state=none",
        ]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    print(done.stdout)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "0 failed" in done.stdout
