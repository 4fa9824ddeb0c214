"""Each bound of each setting refuses what lies beyond it; order and names of the sources."""

import json
import os
from pathlib import Path
from typing import Any

import annotated_types
import pytest

from warpgauge import settings
from warpgauge.errors import SettingsError
from warpgauge.settings import PREFIX, PROJECT_ROOT, Settings, load_settings


@pytest.fixture(autouse=True)
def no_settings_from_outside(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in os.environ:
        if name.upper().startswith(PREFIX):
            monkeypatch.delenv(name)
    monkeypatch.setattr(settings, "SETTINGS_FILE", tmp_path / "warpgauge.toml")


def write_settings(text: str) -> None:
    settings.SETTINGS_FILE.write_text(text, encoding="utf-8")


def bounds() -> list[tuple[str, Any, Any]]:
    """For each bound: the setting, the last value within it, and one beyond it."""
    found = []
    for name, field in Settings.model_fields.items():
        step = 1 if field.annotation is int else 1e-6
        for bound in field.metadata:
            if isinstance(bound, annotated_types.Ge):
                found.append((name, bound.ge, bound.ge - step))
            elif isinstance(bound, annotated_types.Gt):
                found.append((name, bound.gt + step, bound.gt))
            elif isinstance(bound, annotated_types.Le):
                found.append((name, bound.le, bound.le + (step if bound.le < 1e5 else 1)))
            elif isinstance(bound, annotated_types.Lt):
                found.append((name, bound.lt - step, bound.lt))
    return found


NUMERIC = [name for name, field in Settings.model_fields.items() if field.annotation in (int, float)]
BOUNDS = bounds()


@pytest.mark.parametrize("name", NUMERIC)
def test_every_number_has_a_lower_and_an_upper_bound(name: str) -> None:
    kinds = {type(bound) for bound in Settings.model_fields[name].metadata}
    assert kinds & {annotated_types.Ge, annotated_types.Gt}
    assert kinds & {annotated_types.Le, annotated_types.Lt}


@pytest.mark.parametrize("name", Settings.model_fields)
def test_every_setting_says_what_it_is(name: str) -> None:
    assert Settings.model_fields[name].description


@pytest.mark.parametrize(
    ("name", "at", "beyond"),
    [pytest.param(name, at, beyond, id=f"{name}={beyond}") for name, at, beyond in BOUNDS],
)
def test_a_value_beyond_a_bound_is_refused_and_the_bound_is_not(
    name: str, at: Any, beyond: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(PREFIX + name.upper(), repr(at))
    assert getattr(load_settings(), name) == at
    monkeypatch.setenv(PREFIX + name.upper(), repr(beyond))
    with pytest.raises(SettingsError, match=f"wrong setting: {name}: .*found"):
        load_settings()


@pytest.mark.parametrize("name", NUMERIC)
@pytest.mark.parametrize("text", ["", "many", "nan"])
def test_what_is_no_number_is_refused(name: str, text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + name.upper(), text)
    with pytest.raises(SettingsError, match=name):
        load_settings()


def test_the_defaults_hold_where_nothing_is_set() -> None:
    loaded = load_settings()
    assert loaded.data_dir == "data"
    assert loaded.validation_quarantine_limit_ratio == 0.05
    assert loaded.validation_completeness_floor_ratio == 0.95


def test_the_environment_comes_before_the_file_and_the_file_before_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    write_settings("gate_minimum_rows = 41\nlatency_leaves = 7\n")
    monkeypatch.setenv("WARPGAUGE_GATE_MINIMUM_ROWS", "42")
    loaded = load_settings()
    assert (loaded.gate_minimum_rows, loaded.latency_leaves, loaded.latency_seed) == (42, 7, 0)
    assert load_settings(gate_minimum_rows=43, latency_leaves=None).gate_minimum_rows == 43


@pytest.mark.parametrize("device", ["auto", "cpu", "gpu"])
def test_the_device_is_chosen_by_what_is_there_or_by_name(
    device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_LATENCY_DEVICE", device)
    assert load_settings().latency_device == device


@pytest.mark.parametrize("device", ["cuda", "GPU", "", "automatic"])
def test_an_unknown_device_is_refused(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_LATENCY_DEVICE", device)
    with pytest.raises(SettingsError, match="latency_device"):
        load_settings()


def test_an_unknown_name_in_the_environment_is_refused_with_its_nearest_names(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("WARPGAUGE_DATA_DIRECTORY", "elsewhere")
    with pytest.raises(SettingsError, match=r"WARPGAUGE_DATA_DIRECTORY .*did you mean WARPGAUGE_DATA_DIR\b"):
        load_settings()


def test_an_unknown_key_in_the_file_is_refused() -> None:
    write_settings('data_directory = "elsewhere"\n')
    with pytest.raises(SettingsError, match="data_directory"):
        load_settings()


@pytest.mark.parametrize("text", ["data_dir = ", "data_dir = 3", "[store]\ndata_dir = 'x'", "data_dir: x"])
def test_a_file_that_is_wrong_is_refused(text: str) -> None:
    write_settings(text)
    with pytest.raises(SettingsError):
        load_settings()


def test_a_file_that_is_not_text_is_refused() -> None:
    settings.SETTINGS_FILE.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(SettingsError, match="cannot be read as TOML"):
        load_settings()


def test_a_value_beyond_a_bound_in_the_file_is_refused() -> None:
    write_settings("validation_quarantine_limit_ratio = 1.5\n")
    with pytest.raises(SettingsError, match=r"validation_quarantine_limit_ratio: .* \(found 1.5\)"):
        load_settings()


def test_addresses_do_not_depend_on_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert load_settings().resolved_data_dir() == str(PROJECT_ROOT / "data")
    assert load_settings().resolved_mlflow_uri() == f"sqlite:///{PROJECT_ROOT / 'mlruns' / 'mlflow.db'}"
    assert load_settings(data_dir="s3://bucket/tables").resolved_data_dir() == "s3://bucket/tables"
    assert load_settings(data_dir=str(tmp_path)).resolved_data_dir() == str(tmp_path)
    assert load_settings(mlflow_uri="http://there:5000").resolved_mlflow_uri() == "http://there:5000"


def test_a_wrong_secret_is_refused_without_being_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_REDACTION_KEY", "shortsecret")
    with pytest.raises(SettingsError, match=r"redaction_key: .*at least 16") as caught:
        load_settings()
    assert "shortsecret" not in str(caught.value)
    # A flow's log keeps the cause too.
    assert "shortsecret" not in str(caught.value.__cause__)


def test_a_secret_under_a_mistyped_name_is_not_shown() -> None:
    write_settings('redaction_kye = "a secret of enough letters"\n')
    with pytest.raises(SettingsError, match="redaction_kye") as caught:
        load_settings()
    assert "enough letters" not in str(caught.value)


def test_a_size_limit_in_mb_is_millions_of_bytes() -> None:
    assert load_settings(fetch_size_limit_mb=1.5).fetch_size_limit_bytes == 1_500_000


def test_a_secret_is_not_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_ALERT_WEBHOOK_URL", "https://example.org/hook/unspoken")
    loaded = load_settings()
    assert "unspoken" not in repr(loaded)
    assert "unspoken" not in json.dumps(loaded.model_dump(mode="json"))
