"""Fixtures that every test may use."""

import os
import shutil
from pathlib import Path

import pytest

PROJECT_ROOT = Path(__file__).resolve().parents[1]


def _folder(name: str) -> Path:
    """Folder of public material beside the checkout; a test that needs it skips, with the reason printed."""
    folder = PROJECT_ROOT.parent / "shared" / name
    if not folder.is_dir():
        pytest.skip(f"{folder} is absent: this test reads public material that is not part of the project")
    return folder


@pytest.fixture
def bench_data() -> Path:
    """Public data sets (WARPGAUGE_BENCH_DATA, or shared/data beside the checkout)."""
    if named := os.environ.get("WARPGAUGE_BENCH_DATA"):
        return Path(named)
    return _folder("data")


@pytest.fixture
def cases() -> Path:
    """Failure stories with small inputs, beside the checkout."""
    return _folder("cases")


@pytest.fixture(scope="session")
def empty_tracking_store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An MLflow database without a run; making one takes seconds, copying it none."""
    from mlflow.store.tracking.sqlalchemy_store import SqlAlchemyStore

    folder = tmp_path_factory.mktemp("tracking")
    SqlAlchemyStore(f"sqlite:///{folder / 'mlflow.db'}", str(folder / "artifacts")).engine.dispose()
    return folder / "mlflow.db"


@pytest.fixture
def registry(project: Path, empty_tracking_store: Path) -> Path:
    """The store of `project` with an MLflow database ready in it."""
    (project / "mlruns").mkdir()
    shutil.copy(empty_tracking_store, project / "mlruns" / "mlflow.db")
    return project


@pytest.fixture
def expectations(project: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The suites with results and pages of their own, which stay out of the checkout."""
    from tasks import storage, validation

    folder = project / "expectations"
    folder.mkdir()
    for name in ("suites", "great_expectations.yml"):
        (folder / name).symlink_to(PROJECT_ROOT / "expectations" / name)
    for module in (storage, validation):
        monkeypatch.setattr(module, "expectations_dir", lambda: folder)
    return folder


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of its own: tables under `data`, MLflow under `mlruns`, nothing in the checkout is touched."""
    monkeypatch.setenv("WARPGAUGE_DATA_DIR", str(tmp_path / "data"))
    monkeypatch.setenv("WARPGAUGE_MLFLOW_URI", f"sqlite:///{tmp_path / 'mlruns' / 'mlflow.db'}")
    return tmp_path
