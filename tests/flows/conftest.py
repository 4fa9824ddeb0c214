"""One Prefect server for all flow tests, and small sources that the main job can learn from."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes import FakeEncoder, write_launches, write_reports


@pytest.fixture(scope="session")
def prefect_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """A Prefect server of the tests' own; it takes some seconds to start, so one serves all."""
    from prefect.testing.utilities import prefect_test_harness

    with prefect_test_harness(server_startup_timeout=120):
        yield


@pytest.fixture
def chain(
    registry: Path, project: Path, expectations: Path, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[str]]:
    """Sources for one main job, an encoder that needs no weights, and docs that stay out of the checkout."""
    from tasks import embedding

    monkeypatch.setattr(embedding, "load_encoder", FakeEncoder)
    return {
        "launches": [str(write_launches(project, range(1, 101), trials=4))],
        "documents": [f"jsonl:{write_reports(project)}"],
    }
