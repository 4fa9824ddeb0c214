"""Every setting: unit, range, default and reason; one small class a concern.

A `WARPGAUGE_` variable comes first, then a line of `warpgauge.toml` in the project's root, then the
default. A name that is not here stops the program, because a mistyped setting that is silently ignored
is worse than none.
"""

from __future__ import annotations

import difflib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import Field, SecretStr, ValidationError
from pydantic_settings import (
    BaseSettings,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
    TomlConfigSettingsSource,
)

from warpgauge.errors import SettingsError
from warpgauge.tables import LAUNCH_LABELS

if TYPE_CHECKING:
    from pydantic_core import ErrorDetails

PROJECT_ROOT = Path(__file__).resolve().parents[1]
SETTINGS_FILE = PROJECT_ROOT / "warpgauge.toml"
PREFIX = "WARPGAUGE_"


class _Section(BaseSettings):
    # A flow's log keeps the text of an error, so the text holds no value: it may be a secret one.
    model_config = SettingsConfigDict(
        env_prefix=PREFIX, extra="forbid", frozen=True, hide_input_in_errors=True
    )

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,  # noqa: ARG003 - the signature is pydantic's
        file_secret_settings: PydanticBaseSettingsSource,  # noqa: ARG003
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        return init_settings, env_settings, TomlConfigSettingsSource(settings_cls, toml_file=SETTINGS_FILE)


class StoreSettings(_Section):
    """Where tables, models and caches lie."""

    data_dir: str = Field(
        "data",
        min_length=1,
        description="Tables: a folder (relative to the project's root) or an object-store address",
    )
    mlflow_uri: str | None = Field(
        None, description="Tracking store; default is SQLite under mlruns/ in the project's root"
    )
    bench_data: Path | None = Field(None, description="Folder of public data sets for tests and benchmarks")
    fetch_timeout_s: float = Field(
        60.0, ge=1, le=3600, description="Longest wait for one answer of a network source"
    )
    telemetry_timezone: str = Field(
        "UTC",
        min_length=1,
        description="Zone of log times that name none, as nvidia-smi writes them: an IANA name",
    )
    fetch_size_limit_mb: float = Field(
        2048.0,
        ge=1,
        le=1_000_000,
        description="Largest file read, after decompression; larger is refused as hostile",
    )

    @property
    def fetch_size_limit_bytes(self) -> int:
        """The same in bytes, 1,000,000 to the MB."""
        return int(self.fetch_size_limit_mb * 1_000_000)


class DocumentSettings(_Section):
    """What is secret in collected texts, besides tokens, keys, passwords and e-mail addresses."""

    redaction_customer_pattern: str | None = Field(
        None, min_length=1, description="Regular expression of customer identifiers; they become keyed hashes"
    )
    redaction_code_names: str = Field(
        "", description="Code names of products, separated by commas; they become a placeholder"
    )
    redaction_key: SecretStr | None = Field(
        None, min_length=16, description="Key of the hashes; needed where a customer pattern is set"
    )


class ValidationSettings(_Section):
    """How much bad data stops the work."""

    validation_quarantine_limit_ratio: float = Field(
        0.05,
        ge=0,
        le=1,
        description="Share of bad rows above which the batch is refused instead of quarantined row by row",
    )
    validation_completeness_floor_ratio: float = Field(
        0.95, ge=0, le=1, description="Least share of non-null values in each required column"
    )


class LatencySettings(_Section):
    """Training of the launch-latency model."""

    latency_target: str = Field(
        "first_launch_api_us", pattern=f"^({'|'.join(LAUNCH_LABELS)})$", description="Label column to predict"
    )
    latency_max_bin: int = Field(
        255,
        ge=2,
        le=65_535,
        description="Histogram bins; 64 as the founding essay has it costs 5 to 17 % RMSE on three of six real sets",
    )
    latency_trees: int = Field(
        600, ge=1, le=10_000, description="Most boosting rounds; early stopping chooses"
    )
    latency_early_stopping_rounds: int = Field(
        50, ge=1, le=1000, description="Rounds without a better held-out RMSE before training stops"
    )
    latency_leaves: int = Field(31, ge=2, le=4096, description="Leaves a tree")
    latency_learning_rate: float = Field(0.05, gt=0, le=1, description="Shrinkage a round")
    latency_coverage_ratio: float = Field(
        0.90, ge=0.5, le=0.999, description="Share of launches that the interval should hold"
    )
    latency_seed: int = Field(0, ge=0, le=2**31 - 1, description="Seed of everything random in training")
    latency_trials: int = Field(
        0,
        ge=0,
        le=10_000,
        description="Settings of the trees that a training searches first; 0 takes those above",
    )
    latency_minimum_rows: int = Field(
        50, ge=10, le=10_000_000, description="Fewer labelled rows than this train nothing"
    )
    latency_device: str = Field(
        "auto",
        pattern="^(auto|cpu|gpu)$",
        description="LightGBM device: auto takes an OpenCL GPU where one is and the table is large, gpu any OpenCL device",
    )
    threads: int = Field(
        0, ge=0, le=1024, description="Threads that train the latency model; 0 chooses by the number of rows"
    )


class DocqualitySettings(_Section):
    """Training of the documentation-quality model."""

    docquality_encoder_tokens: int = Field(
        128, ge=16, le=512, description="Tokens of a text that the encoder sees"
    )
    docquality_encoder_batch_size: int = Field(32, ge=1, le=4096, description="Texts in one encoder batch")
    docquality_rounds: int = Field(
        3, ge=0, le=20, description="Self-training rounds; 0 trains on the labels alone"
    )
    docquality_confidence_ratio: float = Field(
        0.95, ge=0.5, le=1, description="Least calibrated confidence of a pseudo-label"
    )
    docquality_recall_drop_limit_ratio: float = Field(
        0.02, ge=0, le=1, description="Largest fall of a class's held-out recall in one round"
    )
    docquality_minimum_labels: int = Field(
        40, ge=10, le=1_000_000, description="Fewer labelled documents than this train nothing"
    )
    docquality_seed: int = Field(0, ge=0, le=2**31 - 1, description="Seed of everything random in training")


class GateSettings(_Section):
    """What a challenger must show to become champion."""

    gate_minimum_rows: int = Field(30, ge=2, le=1_000_000, description="Fewest held-out rows for a verdict")
    gate_confidence_ratio: float = Field(
        0.95, ge=0.5, le=0.999, description="Confidence of the paired bootstrap"
    )
    gate_tolerance_ratio: float = Field(
        0.02, ge=0, le=1, description="A challenger may be worse by this share and still count as equal"
    )
    gate_slice_tolerance_ratio: float = Field(0.10, ge=0, le=10, description="The same in each slice")
    gate_model_size_limit_mb: float = Field(1.2, gt=0, le=10_000, description="Largest latency model file")


class PrometheusSettings(_Section):
    """A Prometheus server that scrapes the GPUs."""

    prometheus_url: SecretStr | None = Field(
        None,
        description="http://host:9090, with a login where needed: the monitor takes utilization from there if set",
    )
    prometheus_scrape_s: float = Field(
        15.0, ge=0.1, le=3600, description="How often that server scrapes the GPUs"
    )


class MonitorSettings(_Section):
    """When the monitor acts."""

    monitor_window_hours: float = Field(24.0, gt=0, le=8760, description="Length of the window measured")
    monitor_utilization_limit_percent: float = Field(
        92.0, ge=0, le=100, description="95th percentile of GPU utilization above this trips"
    )
    monitor_minimum_samples: int = Field(
        50, ge=20, le=1_000_000, description="Fewest GPU samples for a 95th percentile"
    )
    monitor_minimum_coverage_ratio: float = Field(
        0.8, ge=0, le=1, description="Least share of valid readings in the window"
    )
    monitor_variance_change_limit_ratio: float = Field(
        0.40, gt=0, le=100, description="Growth of variance along the reference's axis 3 that trips"
    )
    monitor_minimum_documents: int = Field(
        50,
        ge=20,
        le=1_000_000,
        description="Fewest documents for an embedding statistic (at 10, 17 % of unchanged windows trip)",
    )
    monitor_minimum_launches: int = Field(
        100, ge=20, le=10_000_000, description="Fewest launches for a residual statistic"
    )
    monitor_false_alarm_ratio: float = Field(
        0.001,
        gt=0,
        le=0.5,
        description="Chance that one unchanged window trips a calibrated test: 1,000 windows between false alarms",
    )
    monitor_for_minutes: float = Field(
        0.0, ge=0, le=100_000, description="How long a signal must stay tripped before it fires"
    )
    monitor_rearm_minutes: float = Field(
        30.0, ge=0, le=100_000, description="How long a signal must stay quiet before an episode ends"
    )
    monitor_cooldown_minutes: float = Field(
        60.0, ge=0, le=1_000_000, description="Least time between two retrainings of one model"
    )
    monitor_daily_budget: int = Field(
        4, ge=0, le=1000, description="Most retrainings of one model in 24 hours"
    )
    monitor_failure_limit: int = Field(
        3, ge=1, le=100, description="Failed retrainings in one episode before a human is asked"
    )
    monitor_lease_minutes: float = Field(
        30.0, gt=0, le=100_000, description="A retraining without a sign of life for this long is dead"
    )
    alert_webhook_url: SecretStr | None = Field(None, description="Alerts are posted here as JSON if set")
    alert_retry_hours: float = Field(
        72.0, gt=0, le=168, description="How long an alert that the webhook does not take is tried again"
    )


class ReportSettings(_Section):
    """Where the monitor's own metrics can be read, besides the folder of its pages."""

    monitor_textfile: str | None = Field(
        None,
        pattern=r"\.prom$",
        description="Metrics for the textfile collector of node_exporter: a path in its folder that ends in .prom",
    )
    monitor_metrics_port: int = Field(
        0, ge=0, le=65_535, description="`warpgauge monitor` answers Prometheus on this port; 0 opens none"
    )
    monitor_metrics_host: str = Field(
        "127.0.0.1", min_length=1, description="Address that the port is opened on; 0.0.0.0 is every one"
    )


class RetentionSettings(_Section):
    """What `warpgauge compact` keeps; it never removes what a registered model version needs."""

    retention_samples_days: float = Field(
        7.0, gt=0, le=36_500, description="GPU samples; longer than the window of the monitor"
    )
    retention_history_days: float = Field(
        90.0,
        gt=30,
        le=36_500,
        description="Decisions, predictions, answered review entries, runs that no model version refers to",
    )
    retention_cache_mb: float = Field(
        2000.0, ge=0, le=10_000_000, description="Largest size of the caches together, 1,000,000 bytes a MB"
    )
    retention_reports_days: float = Field(
        2.0, ge=0, le=36_500, description="Pages of the monitor's rounds, besides the newest"
    )
    retention_reports_count: int = Field(300, ge=1, le=1_000_000, description="Newest pages that are kept")
    retention_grace_hours: float = Field(
        24.0,
        ge=0,
        le=8760,
        description="How long what was replaced stays for those who read it; 0 only where nobody works on the store",
    )


class Settings(
    StoreSettings,
    DocumentSettings,
    ValidationSettings,
    LatencySettings,
    DocqualitySettings,
    GateSettings,
    PrometheusSettings,
    MonitorSettings,
    ReportSettings,
    RetentionSettings,
):
    """All settings together."""

    def resolved_data_dir(self) -> str:
        """The tables' address: absolute for a folder, unchanged for an object-store address."""
        if "://" in self.data_dir:
            return self.data_dir
        return str((PROJECT_ROOT / Path(self.data_dir).expanduser()).resolve())

    def resolved_mlflow_uri(self) -> str:
        """The tracking store's address, the same from any working directory."""
        return self.mlflow_uri or f"sqlite:///{PROJECT_ROOT / 'mlruns' / 'mlflow.db'}"


def load_settings(**overrides: Any) -> Settings:
    """Settings from the environment, `warpgauge.toml` and the defaults, in that order.

    Args:
        overrides: Values that come before all of them, by field name; None means not given.

    Raises:
        SettingsError: If a name is unknown or a value outside its range.
    """
    known = {PREFIX + name.upper() for name in Settings.model_fields}
    unknown = sorted(
        name for name in os.environ if name.upper().startswith(PREFIX) and name.upper() not in known
    )
    if unknown:
        # Compared without the prefix, which would make any two names look alike.
        bare = [name.removeprefix(PREFIX) for name in known]
        near = {
            name: [
                PREFIX + match
                for match in difflib.get_close_matches(name.upper().removeprefix(PREFIX), bare, n=2)
            ]
            for name in unknown
        }
        said = [
            f"{name} (did you mean {' or '.join(close)}?)" if (close := near[name]) else name
            for name in unknown
        ]
        raise SettingsError(
            f"unknown setting {', '.join(said)} in the environment; unset it, or see warpgauge/settings.py for all names"
        )
    try:
        return Settings(**{name: value for name, value in overrides.items() if value is not None})
    except ValidationError as error:
        details = "; ".join(
            f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}{_found(item)}"
            for item in error.errors()
        )
        raise SettingsError(
            f"wrong setting: {details}; set it by {PREFIX}<NAME> or in {SETTINGS_FILE.name}"
        ) from error
    except (OSError, ValueError) as error:
        raise SettingsError(f"{SETTINGS_FILE}: cannot be read as TOML: {error}") from error


def _found(item: ErrorDetails) -> str:
    """The value that a setting refuses, for a message; not that of a secret, nor of a name that may be one mistyped."""
    field = Settings.model_fields.get(str(item["loc"][0])) if item["loc"] else None
    if field is None or field.annotation in (SecretStr, SecretStr | None):
        return ""
    return f" (found {item.get('input')!r})"
