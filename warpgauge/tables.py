"""Every table: its columns, types, units and allowed ranges, in one place.

Storage, the Great Expectations suites, the readers and the data dictionary all follow this file; a test
compares them. Missing is null, never 0 and never a sentinel.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field

import polars as pl

from warpgauge.errors import SchemaError

TIME = pl.Datetime("us", "UTC")
KINDS = (
    "broken_link",
    "missing_content",
    "broken_example",
    "outdated_api",
    "typo",
    "incorrect_content",
    "rendering",
    "missing_parameter",
    "wrong_parameter",
    "missing_error_handling",
    "unclear",
)
NATURES = ("concept", "version")
LAUNCH_SOURCES = ("perfscaling", "kineto", "nsight", "tracer", "probe", "simulator")
TOPOLOGIES = ("straight_line", "parallel_lines", "captured", "general")
SIGNALS = (
    "utilization_p95",
    "residuals",
    "embedding_variance",
    "embedding_mean",
    "embedding_shift",
    "label_shift",
    "data_quality",
)
ALERT_OUTCOMES = ("waiting", "delivered", "logged", "dropped")
ACTIONS = ("none", "wait", "retrain", "review", "alert")


@dataclass(frozen=True)
class Column:
    """One column of a table.

    Attributes:
        name: Ends with its unit where it is a quantity.
        dtype: The Polars type on disk.
        description: What one value means.
        unit: Unit of the value, None for names and flags.
        required: A null here sends the row to quarantine.
        minimum, maximum: Inclusive allowed range of numbers.
        allowed: The only strings allowed (each one, in a list of strings), None for any.
    """

    name: str
    dtype: pl.DataType
    description: str
    unit: str | None = None
    required: bool = False
    minimum: float | None = None
    maximum: float | None = None
    allowed: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Table:
    """One table: what a row is, its key, its columns.

    Attributes:
        name: The one name, in code, on disk, in the suite and in the docs.
        row: What one row stands for.
        key: Columns that tell rows apart; an append of a known key adds nothing.
        columns: In storage order.
        any_of: Groups of columns of which each row needs at least one value.
    """

    name: str
    row: str
    key: tuple[str, ...]
    columns: tuple[Column, ...]
    any_of: tuple[tuple[str, ...], ...] = field(default=())

    @property
    def column_names(self) -> tuple[str, ...]:
        """Column names in storage order."""
        return tuple(column.name for column in self.columns)

    @property
    def schema(self) -> pl.Schema:
        """The Polars schema in storage order."""
        return pl.Schema({column.name: column.dtype for column in self.columns})

    def column(self, name: str) -> Column:
        """The column of that name.

        Raises:
            SchemaError: If the table has none.
        """
        for column in self.columns:
            if column.name == name:
                return column
        raise SchemaError(f"table {self.name} has no column {name}; it has {', '.join(self.column_names)}")

    def empty(self) -> pl.DataFrame:
        """A frame of this table with no rows."""
        return pl.DataFrame(schema=self.schema)

    def key_hashes(self, frame: pl.DataFrame) -> pl.Series:
        """SHA-256 of each row's key, hexadecimal: how quarantine names a row."""
        keys = frame.select(pl.struct(self.key).struct.json_encode().alias("key"))["key"]
        return pl.Series(
            "row_sha256", [hashlib.sha256(key.encode()).hexdigest() for key in keys], dtype=pl.String()
        )

    def conform(self, frame: pl.DataFrame) -> pl.DataFrame:
        """The same rows with exactly this table's columns, order and types; absent columns become null.

        Raises:
            SchemaError: If a column is unknown to the table or its values do not fit the type.
        """
        unknown = [name for name in frame.columns if name not in self.schema]
        if unknown:
            raise SchemaError(
                f"table {self.name}: unknown column {', '.join(unknown)}; add it to warpgauge/tables.py or drop it"
            )
        try:
            return frame.select(
                pl.col(column.name).cast(column.dtype)
                if column.name in frame.columns
                else pl.lit(None, dtype=column.dtype).alias(column.name)
                for column in self.columns
            )
        except pl.exceptions.PolarsError as error:
            raise SchemaError(
                f"table {self.name}: a value does not fit its column's type: {error}"
            ) from error


def _us(name: str, description: str) -> Column:
    """A duration label in microseconds; a launch beyond 100 seconds is a broken clock."""
    return Column(name, pl.Float64(), description, unit="us", minimum=0.0, maximum=1e8)


def _count(name: str, description: str) -> Column:
    return Column(name, pl.Int64(), description, unit="1", minimum=0, maximum=10_000_000)


LAUNCH_LABELS = (
    "first_launch_api_us",
    "first_launch_total_us",
    "first_launch_device_us",
    "repeat_launch_api_us",
    "repeat_launch_total_us",
    "repeat_launch_device_us",
    "upload_api_us",
    "upload_device_us",
    "instantiate_us",
    "capture_us",
    "launch_api_us",
    "launch_to_device_us",
)

LAUNCHES = Table(
    name="launches",
    row="one trial of one graph on one GPU",
    key=("launch_id",),
    columns=(
        Column(
            "launch_id",
            pl.String(),
            "SHA-256 of source kind, hash of the decompressed file and ordinal of the record; never the path",
            required=True,
        ),
        Column(
            "source_kind", pl.String(), "which reader brought the row", required=True, allowed=LAUNCH_SOURCES
        ),
        Column("source_name", pl.String(), "base name of the file or the simulator's name", required=True),
        Column("source_sha256", pl.String(), "SHA-256 of the decompressed file", required=True),
        Column(
            "record_ordinal", pl.Int64(), "place of the record in its file, from 0", required=True, minimum=0
        ),
        Column("collected_at", TIME, "when the collector wrote the row", required=True),
        Column(
            "gpu_name", pl.String(), "marketing name, as NVML gives it; null where the source does not say"
        ),
        Column("gpu_uuid", pl.String(), "UUID of the GPU; null where the source does not say"),
        Column("driver_version", pl.String(), "driver version, for example 570.86"),
        Column("cuda_version", pl.String(), "CUDA version, for example 12.9"),
        Column(
            "graph_id", pl.String(), "same value = trials of the same graph on the same GPU", required=True
        ),
        Column(
            "graph_signature",
            pl.String(),
            "shape of the graph without GPU or trial: splits keep one signature on one side",
            required=True,
        ),
        Column("topology", pl.String(), "family of the shape", required=True, allowed=TOPOLOGIES),
        Column("trial", pl.Int64(), "ordinal of the trial among those of the same graph, from 0", minimum=0),
        Column(
            "line_length",
            pl.Int64(),
            "nodes in each line; null unless lines",
            unit="1",
            minimum=1,
            maximum=10_000_000,
        ),
        Column(
            "line_count",
            pl.Int64(),
            "number of parallel lines; null unless lines",
            unit="1",
            minimum=1,
            maximum=100_000,
        ),
        Column("clock", pl.String(), "clock of started_ns", allowed=("unix", "trace")),
        Column("started_ns", pl.Int64(), "start of the launch call on that clock", unit="ns", minimum=0),
        _us("first_launch_api_us", "CPU time inside the first launch call of a new executable graph"),
        _us("first_launch_total_us", "first launch call to end of the device's work"),
        _us("first_launch_device_us", "device time of the first launch"),
        _us("repeat_launch_api_us", "CPU time inside a later launch call of the same executable graph"),
        _us("repeat_launch_total_us", "later launch call to end of the device's work"),
        _us("repeat_launch_device_us", "device time of a later launch"),
        _us("upload_api_us", "CPU time inside cudaGraphUpload"),
        _us("upload_device_us", "device time of cudaGraphUpload"),
        _us("instantiate_us", "CPU time inside cudaGraphInstantiate"),
        _us("capture_us", "CPU time of the stream capture"),
        _us("launch_api_us", "duration of the launch call as a trace records it"),
        _us("launch_to_device_us", "start of the launch call to the first device activity; null without one"),
        Column("is_first_launch", pl.Boolean(), "first launch of its executable graph; null where unknown"),
        Column(
            "is_profiled", pl.Boolean(), "a profiler was attached (2 to 3 us per node slower)", required=True
        ),
        Column("is_simulated", pl.Boolean(), "made by the simulator, not measured", required=True),
        Column(
            "first_launch_timed_out",
            pl.Boolean(),
            "the blocking kernel timed out, so the device time is unsure",
        ),
        Column("repeat_launch_timed_out", pl.Boolean(), "the same for the repeat launch"),
        Column("upload_timed_out", pl.Boolean(), "the same for the upload"),
        Column("node_count", pl.Int64(), "nodes in the graph", unit="1", minimum=1, maximum=10_000_000),
        _count("kernel_count", "kernel nodes, or kernels that ran for the launch"),
        _count("memcpy_count", "memory copy nodes"),
        _count("memset_count", "memory set nodes"),
        _count("other_node_count", "nodes of any other type"),
        _count("edge_count", "dependencies between nodes"),
        _count("root_count", "nodes without a predecessor"),
        _count("leaf_count", "nodes without a successor"),
        _count("depth", "nodes on the longest path"),
        _count("graph_width", "largest number of nodes at one depth"),
        Column(
            "is_straight_line",
            pl.Boolean(),
            "each node has at most one predecessor and one successor, one line",
        ),
        _count("stream_count", "device streams that the launch's work ran on"),
        Column("memcpy_bytes", pl.Int64(), "bytes moved by all copies", unit="B", minimum=0),
        Column("memcpy_htod_bytes", pl.Int64(), "bytes moved host to device", unit="B", minimum=0),
        Column("memcpy_dtoh_bytes", pl.Int64(), "bytes moved device to host", unit="B", minimum=0),
        Column("memcpy_dtod_bytes", pl.Int64(), "bytes moved device to device", unit="B", minimum=0),
        Column("memset_bytes", pl.Int64(), "bytes set", unit="B", minimum=0),
        Column("block_count_total", pl.Float64(), "thread blocks over all kernels", unit="1", minimum=0),
        Column(
            "block_count_maximum", pl.Float64(), "thread blocks of the largest kernel", unit="1", minimum=0
        ),
        Column(
            "threads_per_block_mean", pl.Float64(), "mean over kernels", unit="1", minimum=0, maximum=1024
        ),
        Column(
            "threads_per_block_maximum",
            pl.Float64(),
            "largest over kernels",
            unit="1",
            minimum=0,
            maximum=1024,
        ),
        Column(
            "registers_per_thread_maximum",
            pl.Float64(),
            "largest over kernels",
            unit="1",
            minimum=0,
            maximum=255,
        ),
        Column(
            "shared_memory_bytes_maximum", pl.Float64(), "largest per block over kernels", unit="B", minimum=0
        ),
        _count("distinct_kernel_count", "different kernel names"),
        Column(
            "sm_count", pl.Int64(), "streaming multiprocessors of the GPU", unit="1", minimum=1, maximum=1024
        ),
        Column("compute_capability", pl.Float64(), "for example 8.0", unit="1", minimum=1, maximum=100),
        Column("gpu_memory_bytes", pl.Int64(), "memory of the GPU", unit="B", minimum=1),
        Column(
            "gpus_in_process_count",
            pl.Int64(),
            "GPUs that the process saw",
            unit="1",
            minimum=1,
            maximum=1024,
        ),
    ),
    any_of=(LAUNCH_LABELS,),
)

GPU_SAMPLES = Table(
    name="gpu_samples",
    row="one reading of one GPU at one time",
    key=("gpu_uuid", "sampled_at"),
    columns=(
        Column("gpu_uuid", pl.String(), "UUID, never the index", required=True),
        Column("sampled_at", TIME, "when the reading was taken", required=True),
        Column(
            "source_kind",
            pl.String(),
            "reader",
            required=True,
            allowed=("nvml", "nvidia_smi", "dcgm", "prometheus"),
        ),
        Column("source_name", pl.String(), "file or host that gave it", required=True),
        Column("collected_at", TIME, "when the collector wrote the row", required=True),
        Column("gpu_name", pl.String(), "marketing name"),
        Column(
            "utilization_percent",
            pl.Float64(),
            "share of time with a kernel running",
            unit="%",
            minimum=0,
            maximum=100,
        ),
        Column(
            "memory_utilization_percent",
            pl.Float64(),
            "share of time memory was accessed",
            unit="%",
            minimum=0,
            maximum=100,
        ),
        Column("memory_used_bytes", pl.Int64(), "memory in use", unit="B", minimum=0),
        Column("memory_total_bytes", pl.Int64(), "memory of the GPU", unit="B", minimum=0),
        Column("sm_clock_mhz", pl.Float64(), "SM clock", unit="MHz", minimum=0, maximum=10_000),
        Column("memory_clock_mhz", pl.Float64(), "memory clock", unit="MHz", minimum=0, maximum=50_000),
        Column("temperature_celsius", pl.Float64(), "GPU temperature", unit="degC", minimum=-50, maximum=200),
        Column("power_w", pl.Float64(), "power draw", unit="W", minimum=0, maximum=10_000),
        Column(
            "pcie_rx_kb_per_s", pl.Float64(), "PCIe receive throughput over 20 ms", unit="KB/s", minimum=0
        ),
        Column("pcie_tx_kb_per_s", pl.Float64(), "PCIe send throughput over 20 ms", unit="KB/s", minimum=0),
        Column(
            "pcie_link_generation",
            pl.Int64(),
            "current link generation (1 when idle)",
            unit="1",
            minimum=1,
            maximum=10,
        ),
        Column("pcie_link_width", pl.Int64(), "current link width", unit="lanes", minimum=1, maximum=32),
        Column("null_reasons", pl.String(), "JSON object: field -> why it is null"),
    ),
)

DOCUMENTS = Table(
    name="documents",
    row="one document version",
    key=("document_id",),
    columns=(
        Column(
            "document_id", pl.String(), "SHA-256 of source, source id, version and content", required=True
        ),
        Column(
            "source",
            pl.String(),
            "where it comes from, for example cuda-headers or rapidsai/cudf",
            required=True,
        ),
        Column("source_id", pl.String(), "its name there; the same over versions", required=True),
        Column(
            "family",
            pl.String(),
            "page = documentation itself; report = text about it",
            required=True,
            allowed=("page", "report"),
        ),
        Column("url", pl.String(), "where a person can read it"),
        Column("title", pl.String(), "title or function name"),
        Column("body", pl.String(), "prose, cleaned"),
        Column("code", pl.String(), "code that belongs to it; for a header entry its declaration"),
        Column("product_version", pl.String(), "version of the product documented"),
        Column("created_at", TIME, "when it was written"),
        Column("updated_at", TIME, "when it was last changed at its source"),
        Column("fetched_at", TIME, "when it was collected", required=True),
        Column("content_sha256", pl.String(), "SHA-256 of title, body and code", required=True),
        Column(
            "redaction_count",
            pl.Int64(),
            "secrets removed before the first write",
            unit="1",
            required=True,
            minimum=0,
        ),
    ),
    any_of=(("title", "body", "code"),),
)

LABELS = Table(
    name="labels",
    row="one annotator's label of one document, or one label from its history",
    key=("document_id", "annotator", "labelled_at"),
    columns=(
        Column("document_id", pl.String(), "which document", required=True),
        Column("annotator", pl.String(), "who: a keyed name, or the name of the rule", required=True),
        Column("labelled_at", TIME, "when", required=True),
        Column(
            "label_source",
            pl.String(),
            "how it came about",
            required=True,
            allowed=("human", "history", "check"),
        ),
        Column("is_defect", pl.Boolean(), "the documentation is at fault", required=True),
        Column("kinds", pl.List(pl.String()), "kinds of the defect", allowed=KINDS),
        Column(
            "nature", pl.String(), "concept = wrong in itself, version = wrong for a version", allowed=NATURES
        ),
    ),
)

QUARANTINE = Table(
    name="quarantine",
    row="a row that failed validation",
    key=("table_name", "row_sha256"),
    columns=(
        Column("table_name", pl.String(), "table of the row", required=True),
        Column("row_sha256", pl.String(), "SHA-256 of the row's key", required=True),
        Column("row_key", pl.String(), "JSON of the row's key", required=True),
        Column("check_name", pl.String(), "expectation and column that refused it", required=True),
        Column("reason", pl.String(), "in words, with the value found", required=True),
        Column("quarantined_at", TIME, "when", required=True),
    ),
)

REVIEW_QUEUE = Table(
    name="review_queue",
    row="a document for a human",
    key=("document_id", "why"),
    columns=(
        Column("document_id", pl.String(), "which document", required=True),
        Column("why", pl.String(), "what a human should settle", required=True),
        Column("queued_at", TIME, "when", required=True),
        Column("priority", pl.Float64(), "higher first", unit="1", required=True),
    ),
)

LEASES = Table(
    name="leases",
    row="who holds which single-flight job",
    key=("job",),
    columns=(
        Column("job", pl.String(), "name of the job", required=True),
        Column("holder", pl.String(), "machine, process, its start and random part; empty when released"),
        Column("acquired_at", TIME, "when it was taken", required=True),
        Column("heartbeat_at", TIME, "last sign of life", required=True),
        Column("flow_run_id", pl.String(), "Prefect's flow run of the holder; null outside of one"),
    ),
)

PREDICTIONS = Table(
    name="predictions",
    row="what a served model answered",
    key=("request_id",),
    columns=(
        Column("request_id", pl.String(), "one answer", required=True),
        Column("predicted_at", TIME, "when", required=True),
        Column("model_name", pl.String(), "registered model", required=True),
        Column("model_version", pl.String(), "version that answered", required=True),
        Column("input_reference", pl.String(), "SHA-256 of the input, or a row's id", required=True),
        Column("answer", pl.String(), "the answer, JSON", required=True),
    ),
)

DECISIONS = Table(
    name="decisions",
    row="what the monitor measured and decided, and why",
    key=("decision_id",),
    columns=(
        Column("decision_id", pl.String(), "SHA-256 of monitor run, signal and subject", required=True),
        Column("monitor_run_id", pl.String(), "one run of the monitor", required=True),
        Column("decided_at", TIME, "when", required=True),
        Column("signal", pl.String(), "what was measured", required=True, allowed=SIGNALS),
        Column("subject", pl.String(), "GPU, model or table it was measured on", required=True),
        Column("model_name", pl.String(), "model that the action concerns"),
        Column("model_version", pl.String(), "version it was measured against"),
        Column(
            "status",
            pl.String(),
            "whether there is a number",
            required=True,
            allowed=("measured", "cannot_say"),
        ),
        Column("value", pl.Float64(), "the measurement; null when it cannot say"),
        Column("lower", pl.Float64(), "lower end of its interval"),
        Column("upper", pl.Float64(), "upper end of its interval"),
        Column("limit", pl.Float64(), "above it the signal is tripped"),
        Column("sample_count", pl.Int64(), "observations behind it", unit="1", required=True, minimum=0),
        Column("action", pl.String(), "what was decided", required=True, allowed=ACTIONS),
        Column("reason", pl.String(), "why, also why not", required=True),
        Column("episode_id", pl.String(), "the episode it belongs to, null in quiet times"),
        Column("alert_cause", pl.String(), "what a person must hear of, once an episode; null otherwise"),
        Column("state", pl.String(), "JSON of the signal's state after the decision", required=True),
        Column(
            "details", pl.String(), "JSON of the figures beside the value, the slices among them; bounded"
        ),
    ),
)

ALERTS = Table(
    name="alerts",
    row="one alert that a person should hear of, and whether the webhook took it",
    key=("alert_id",),
    columns=(
        Column(
            "alert_id", pl.String(), "the decision that gave it; the webhook's idempotency key", required=True
        ),
        Column("decided_at", TIME, "when it was decided", required=True),
        Column("cause", pl.String(), "why, in one word, as its event is named", required=True),
        Column("signal", pl.String(), "what was measured", required=True, allowed=SIGNALS),
        Column("subject", pl.String(), "GPU, model or table it was measured on", required=True),
        Column("model_name", pl.String(), "model that it concerns"),
        Column("reason", pl.String(), "why, in words", required=True),
        Column("episode_id", pl.String(), "the episode it belongs to"),
        Column(
            "outcome",
            pl.String(),
            "waiting for the webhook, delivered to it, logged where none is set, or dropped as too old or refused",
            required=True,
            allowed=ALERT_OUTCOMES,
        ),
        Column("delivered_at", TIME, "when the webhook took it; null until it did"),
        Column(
            "refusal_count",
            pl.Int64(),
            "times that the webhook refused it",
            unit="1",
            required=True,
            minimum=0,
        ),
        Column("not_before", TIME, "the webhook asked to wait until then"),
        Column("trouble", pl.String(), "what kept it from being delivered, as last seen"),
    ),
)

TABLES: Mapping[str, Table] = {
    table.name: table
    for table in (
        DOCUMENTS,
        LABELS,
        LAUNCHES,
        GPU_SAMPLES,
        QUARANTINE,
        REVIEW_QUEUE,
        LEASES,
        PREDICTIONS,
        DECISIONS,
        ALERTS,
    )
}


def render_data_dictionary() -> str:
    """The data dictionary as Markdown: every table, its key, and for each column its type, unit and range."""
    lines = [
        "# Data dictionary",
        "",
        "Made from `warpgauge/tables.py`; a test compares the two. Write it again, together with the suites of "
        "`expectations/`, by:",
        "",
        "```",
        "python -c 'from tasks.validation import write_contract_files; write_contract_files()'",
        "```",
        "",
        "Missing is null, never 0 and never a sentinel. A null in a required or key column sends the row to "
        "`quarantine`.",
        "Times are UTC with microseconds. Ranges are inclusive; numbers are finite.",
    ]
    for table in TABLES.values():
        lines += ["", f"## {table.name}", "", f"One row: {table.row}. Key: {_code_list(table.key)}.", ""]
        lines += [f"Each row has a value in at least one of {_code_list(group)}.\n" for group in table.any_of]
        lines += ["| column | type | unit | required | allowed | meaning |", "|---|---|---|---|---|---|"]
        lines += [
            "| "
            + " | ".join(
                (
                    f"`{column.name}`",
                    _type_name(column.dtype),
                    column.unit or "",
                    "yes" if column.required or column.name in table.key else "",
                    _allowed_text(column),
                    column.description.replace("|", "\\|"),
                )
            )
            + " |"
            for column in table.columns
        ]
    return "\n".join(lines) + "\n"


def _code_list(names: tuple[str, ...]) -> str:
    return ", ".join(f"`{name}`" for name in names)


def _type_name(dtype: pl.DataType) -> str:
    if isinstance(dtype, pl.Datetime):
        return "time"
    if isinstance(dtype, pl.List):
        return "list of text"
    names = {"String": "text", "Float64": "number", "Int64": "whole number", "Boolean": "flag"}
    return names[str(dtype)]


def _allowed_text(column: Column) -> str:
    if column.allowed is not None:
        return _code_list(column.allowed)
    low, high = column.minimum, column.maximum
    if low is not None and high is not None:
        return f"{low:,.15g} to {high:,.15g}"
    if low is not None:
        return f"at least {low:,.15g}"
    return "" if high is None else f"at most {high:,.15g}"
