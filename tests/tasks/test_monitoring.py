"""The monitor from tables to orders: what is measured, decided once, kept, and told."""

import multiprocessing
import re
import shutil
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import polars as pl
import pytest

from tasks import announcement, attempts, deployment, embedding, monitoring, registration, review, tracking
from tasks.storage import Store
from tests.fakes import FakeEncoder
from warpgauge.errors import ServiceUnavailableError
from warpgauge.registry.names import DOC_QUALITY, LAUNCH_LATENCY
from warpgauge.settings import PROJECT_ROOT
from warpgauge.tables import GPU_SAMPLES

OTHER_TOPIC = (("tensor", "matrix", "gradient", "layer"), ("weights", "batch", "epoch", "loss"))


@pytest.fixture(autouse=True)
def no_prefect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tester's own Prefect profile says."""
    monkeypatch.setattr(deployment, "server_url", lambda: None)


def now() -> datetime:
    return datetime.now(UTC)


def load(percent: float, *, gpu: str = "GPU-1", count: int = 100, hours_ago: float = 1.0) -> None:
    """GPU samples of the hour before `hours_ago`."""
    start = now() - timedelta(hours=hours_ago)
    Store().append(
        "gpu_samples",
        GPU_SAMPLES.conform(
            pl.DataFrame(
                {
                    "gpu_uuid": gpu,
                    "sampled_at": [start - timedelta(seconds=second) for second in range(count)],
                    "source_kind": "nvml",
                    "source_name": "host",
                    "collected_at": now(),
                    "utilization_percent": percent,
                }
            )
        ),
    )


def monitor() -> dict[str, Any]:
    return monitoring.decide(monitoring.measure())


def by_signal(decided: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The decisions by signal, of a round in which each signal has one subject (but for the tables)."""
    return {row["signal"]: row for row in decided["decisions"] if row["signal"] != "data_quality"}


def test_order_names_all_that_the_templates_of_its_automation_ask_for(world: Path) -> None:
    load(97)
    (order,) = monitor()["orders"]
    assert (order["model_name"], order["table"], order["folder"]) == (LAUNCH_LATENCY, "", "")
    asked = re.findall(r"event\.payload\.([\w.]+)", (PROJECT_ROOT / "prefect.yaml").read_text())
    assert {"reason", "attempt_id", "table", "folder", "model_name"} == set(asked) <= set(order)


# Nothing to measure


def test_empty_store_is_said_signal_by_signal_and_kept(registry: Path) -> None:
    decided = monitor()
    said = {(row["signal"], row["subject"]): row["reason"] for row in decided["decisions"]}
    assert {signal for signal, _ in said} == {
        "utilization_p95",
        "residuals",
        "embedding_variance",
        "embedding_mean",
        "embedding_shift",
        "data_quality",
    }
    assert all(row["status"] == "cannot_say" and row["action"] == "wait" for row in decided["decisions"])
    assert "no champion" in said["residuals", LAUNCH_LATENCY]
    assert "no champion" in said["embedding_shift", DOC_QUALITY]
    assert "no samples: no GPU sample in the last 24 hours" in said["utilization_p95", "all GPUs"]
    assert "table launches is empty" in said["data_quality", "launches"]
    assert (decided["orders"], decided["review"], decided["alerts"]) == ([], [], [])
    assert Store().read("decisions").collect().height == len(said)
    monitor()
    assert Store().read("decisions").collect().height == 2 * len(said)


def test_loaded_gpu_without_a_champion_waits_for_the_first_training(registry: Path) -> None:
    load(97)
    row = by_signal(monitor())["utilization_p95"]
    assert row["action"] == "wait"
    assert "has no champion yet; its first training is a run of its own" in row["reason"]


def test_champions_with_nothing_new_have_no_samples(world: Path) -> None:
    rows = by_signal(monitor())
    assert {row["reason"].split(":")[0] for row in rows.values()} == {"cannot say, no samples"}
    assert rows["residuals"]["model_version"] == "1"


# One order an episode


def test_loaded_gpu_orders_one_retraining_and_the_second_run_says_why_not(world: Path) -> None:
    load(97)
    first = monitor()
    row = by_signal(first)["utilization_p95"]
    assert (row["action"], row["value"], row["limit"], row["subject"]) == ("retrain", 97, 92, "GPU-1")
    assert [order["model_name"] for order in first["orders"]] == [LAUNCH_LATENCY]
    assert first["orders"][0]["attempt_id"].startswith(row["episode_id"])
    for _ in range(3):
        later = monitor()
        assert later["orders"] == []
        assert "not retrained again" in by_signal(later)["utilization_p95"]["reason"]


def test_idle_gpu_orders_nothing(world: Path) -> None:
    load(60)
    row = by_signal(monitor())["utilization_p95"]
    assert (row["action"], row["status"]) == ("none", "measured")


def test_ended_retraining_answers_the_episode(world: Path) -> None:
    load(97)
    order = monitor()["orders"][0]
    with attempts.attempt(LAUNCH_LATENCY, order["attempt_id"]) as attempt:
        attempt.end("refused", "worse")
    later = monitor()
    assert later["orders"] == []
    assert "ended 'refused'" in by_signal(later)["utilization_p95"]["reason"]


def test_three_failed_retrainings_end_with_a_person(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WARPGAUGE_MONITOR_COOLDOWN_MINUTES", "0")
    load(97)
    made = []
    for _ in range(3):
        order = monitor()["orders"][0]
        made.append(order["attempt_id"].rsplit("/")[-1])
        with (
            pytest.raises(ValueError, match="broken"),
            attempts.attempt(LAUNCH_LATENCY, order["attempt_id"]),
        ):
            raise ValueError("broken")
    assert made == ["1", "2", "3"]
    last = monitor()
    assert last["orders"] == []
    assert last["review"] == [LAUNCH_LATENCY]
    (alert,) = last["alerts"]
    assert (alert["cause"], alert["signal"]) == ("retraining_failed", "utilization_p95")
    assert "3 retrainings of launch-latency failed" in alert["reason"]
    assert monitor()["alerts"] == []


def test_reason_says_where_the_champion_already_learned_the_load(
    world: Path, latency_bundle: str, tmp_path: Path, make: Any
) -> None:
    loaded = make.bundle(latency_bundle, tmp_path, trained_utilization_p95_percent=96.5)
    registration.promote(LAUNCH_LATENCY, registration.register(loaded).version)
    load(97)
    reason = by_signal(monitor())["utilization_p95"]["reason"]
    assert "the champion, version 2, already learned a loaded regime (p95 96.5 %)" in reason


def test_state_is_in_the_table_alone(world: Path) -> None:
    load(97)
    assert len(monitor()["orders"]) == 1
    shutil.rmtree(world / "data" / "decisions")
    # Without it the episode is a new one; only the cool-down of a retraining that began would hold it.
    assert len(monitor()["orders"]) == 1


def test_episode_of_which_nothing_was_heard_for_a_month_is_forgotten(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    load(97)
    assert len(monitor()["orders"]) == 1
    rows = Store().read("decisions").collect()
    old = rows.with_columns(pl.col("decided_at") - timedelta(days=31))
    assert Store().replace("decisions", old, Store().version("decisions"))
    assert len(monitor()["orders"]) == 1


@pytest.mark.slow
def test_two_monitors_in_two_processes_order_one_retraining(world: Path) -> None:
    load(97)
    tracking.connect()
    spawned = multiprocessing.get_context("spawn")
    answers = spawned.Queue()
    both = [spawned.Process(target=_monitor_in_a_process, args=(answers,)) for _ in range(2)]
    for process in both:
        process.start()
    orders = [answers.get(timeout=120) for _ in both]
    for process in both:
        process.join(60)
    assert sorted(orders) == [0, 1]
    assert Store().read("decisions").filter(pl.col("action") == "retrain").collect().height == 1


def _monitor_in_a_process(answers: Any) -> None:
    answers.put(len(monitor()["orders"]))


def test_monitor_that_decided_meanwhile_is_seen(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load(97)
    measured = monitoring.measure()
    whole = Store.append_after
    others: list[dict[str, Any]] = []

    def overtaken(self: Store, *arguments: Any) -> bool:
        monkeypatch.setattr(Store, "append_after", whole)
        others.append(monitoring.decide(measured))
        return whole(self, *arguments)

    monkeypatch.setattr(Store, "append_after", overtaken)
    mine = monitoring.decide(measured)
    assert len(others[0]["orders"]) == 1
    assert mine["orders"] == []
    assert "already decided" in by_signal(mine)["utilization_p95"]["reason"]


# Latency drift


def test_slower_launches_trip_the_residuals_and_order_a_retraining(world: Path, make: Any) -> None:
    Store().append("launches", make.launches(seed=1, collected_at=now(), slower=1.5))
    decided = monitor()
    row = by_signal(decided)["residuals"]
    assert row["value"] > row["limit"]
    assert row["sample_count"] == 480
    assert [(order["model_name"], order["signal"]) for order in decided["orders"]] == [
        (LAUNCH_LATENCY, "residuals")
    ]


def test_new_launches_of_the_same_law_trip_nothing(world: Path, make: Any) -> None:
    Store().append("launches", make.launches(seed=1, collected_at=now()))
    row = by_signal(monitor())["residuals"]
    assert (row["status"], row["action"], row["sample_count"]) == ("measured", "none", 480)


def test_launches_that_the_champion_learned_from_are_not_measured(
    world: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_MONITOR_WINDOW_HOURS", "96")
    assert Store().read("launches").collect().height == 480
    assert "no labelled launch in the window" in by_signal(monitor())["residuals"]["reason"]
    Store().append("launches", make.launches(seed=1, collected_at=now()).head(30))
    row = by_signal(monitor())["residuals"]
    assert "too few: 30 launches" in row["reason"]


def test_table_that_was_made_anew_is_new_to_the_champion(
    world: Path, make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WARPGAUGE_MONITOR_WINDOW_HOURS", "96")
    shutil.rmtree(world / "data" / "launches")
    Store().append("launches", make.launches())
    assert by_signal(monitor())["residuals"]["sample_count"] == 480


def test_simulated_and_quarantined_launches_are_not_measured(world: Path, make: Any) -> None:
    from warpgauge.tables import LAUNCHES, QUARANTINE

    simulated = make.launches(seed=1, collected_at=now(), slower=3.0).with_columns(
        pl.lit(True).alias("is_simulated"), pl.lit("simulator").alias("source_kind")
    )
    refused = make.launches(seed=2, collected_at=now(), slower=3.0)
    Store().append("launches", pl.concat([simulated, refused]))
    Store().append(
        "quarantine",
        QUARANTINE.conform(
            pl.DataFrame(
                {
                    "table_name": "launches",
                    "row_sha256": LAUNCHES.key_hashes(refused),
                    "row_key": "{}",
                    "check_name": "range",
                    "reason": "test",
                    "quarantined_at": now(),
                }
            )
        ),
    )
    decided = monitor()
    assert "no labelled launch in the window" in by_signal(decided)["residuals"]["reason"]
    quality = next(row for row in decided["decisions"] if row["subject"] == "launches")
    assert (quality["action"], quality["value"]) == ("alert", 480 / 1440)
    (alert,) = decided["alerts"]
    assert (alert["cause"], alert["subject"]) == ("data_quality", "launches")
    assert monitor()["alerts"] == []


# Documentation drift


def test_documents_of_another_topic_fill_the_queue_and_order_a_retraining(world: Path, make: Any) -> None:
    Store().append("documents", make.reports(120, seed=5, fetched_at=now(), words=OTHER_TOPIC))
    decided = monitor()
    row = by_signal(decided)["embedding_shift"]
    assert row["value"] > row["limit"]
    assert [order["model_name"] for order in decided["orders"]] == [DOC_QUALITY]
    assert decided["review"] == [DOC_QUALITY]
    assert announcement.announce(decided) == decided["orders"]
    queue = Store().read("review_queue").collect()
    assert queue.height == review.QUEUED_DOCUMENTS
    assert queue["document_id"].n_unique() == queue.height
    assert set(queue["document_id"]) <= set(make.reports(120, seed=5, words=OTHER_TOPIC)["document_id"])
    assert (queue["priority"] > 0).all()
    announcement.announce(decided)
    assert Store().read("review_queue").collect().height == queue.height


def test_new_documents_of_the_same_topics_trip_nothing(world: Path, make: Any) -> None:
    Store().append("documents", make.reports(120, seed=6, fetched_at=now()))
    rows = by_signal(monitor())
    for signal in ("embedding_shift", "embedding_variance"):
        assert (rows[signal]["status"], rows[signal]["action"]) == ("measured", "none")
        assert rows[signal]["sample_count"] > 100


def test_changed_encoder_cannot_say(world: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Other(FakeEncoder):
        encoder_id = "another encoder"

    monkeypatch.setattr(embedding, "load_encoder", Other)
    Store().append("documents", make.reports(120, seed=5, fetched_at=now(), words=OTHER_TOPIC))
    rows = by_signal(monitor())
    assert "encoder changed" in rows["embedding_shift"]["reason"]
    assert rows["embedding_shift"]["action"] == rows["embedding_variance"]["action"] == "wait"


# A damaged champion


@pytest.mark.parametrize("file", ["residual_reference.safetensors", "embedding_reference.json", "model.txt"])
def test_damaged_champion_blinds_its_own_signals_only(world: Path, make: Any, file: str) -> None:
    tracking.connect()
    for path in (world / "mlruns" / "artifacts").rglob(file):
        path.write_bytes(path.read_bytes()[:50])
    Store().append("launches", make.launches(seed=1, collected_at=now()))
    Store().append("documents", make.reports(120, seed=6, fetched_at=now()))
    load(97)
    rows = by_signal(monitor())
    blind = (
        {"embedding_variance", "embedding_mean", "embedding_shift"} if "embedding" in file else {"residuals"}
    )
    assert {signal for signal, row in rows.items() if row["status"] == "cannot_say"} == blind
    for signal in blind:
        assert "degenerate: champion: " in rows[signal]["reason"]
        assert file in rows[signal]["reason"]


def test_champion_without_a_reference_or_without_its_record_cannot_say(world: Path) -> None:
    tracking.connect()
    for name in ("residual_reference.json", "embedding_reference.json", "training.json"):
        for path in (world / "mlruns" / "artifacts").rglob(name):
            path.unlink()
    rows = by_signal(monitor())
    assert "registered without a residual reference" in rows["residuals"]["reason"]
    assert "registered without an embedding reference" in rows["embedding_shift"]["reason"]


def test_each_champion_is_read_once_a_round(world: Path, make: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    Store().append("launches", make.launches(seed=1, collected_at=now()))
    Store().append("documents", make.reports(120, seed=6, fetched_at=now()))
    read: list[str] = []
    whole = registration.model_files

    def counted(name: str, version: str) -> dict[str, bytes]:
        read.append(name)
        return whole(name, version)

    monkeypatch.setattr(registration, "model_files", counted)
    monitor()
    assert sorted(read) == [DOC_QUALITY, LAUNCH_LATENCY]


# Telling


def test_measured_values_are_in_the_monitors_run_whatever_the_gpu_is_called(world: Path) -> None:
    names = ["GPU-1", "../../etc", "a" * 400, "MIG-GPU-7/1/0", "gpu:0 ²", "."]
    for name in names:
        load(50, gpu=name)
    announcement.announce(monitor())
    client = tracking.connect()
    experiment = client.get_experiment_by_name(tracking.EXPERIMENT).experiment_id
    run = client.search_runs([experiment], "tags.role = 'monitor'")[0]
    found = {key for key in run.data.metrics if key.startswith("utilization_p95/")}
    assert len(found) == len(names)
    assert "utilization_p95/GPU-1" in found
    assert "data_quality/launches" in run.data.metrics


def test_order_that_an_automation_waits_for_is_sent_and_not_run_here(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sent: list[tuple[str, Any]] = []
    monkeypatch.setattr(deployment, "has_automation", lambda event: event == "warpgauge.drift.latency")
    monkeypatch.setattr(announcement, "_emit", lambda event, order: sent.append((event, order)))
    load(97)
    decided = monitor()
    assert announcement.announce(decided) == []
    assert sent == [("warpgauge.drift.latency", decided["orders"][0])]


def test_order_goes_out_even_where_the_metrics_cannot(
    world: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away(values: Any) -> None:
        raise ServiceUnavailableError("MLflow is away")

    sent: list[str] = []
    monkeypatch.setattr(deployment, "has_automation", lambda _: True)
    monkeypatch.setattr(announcement, "_emit", lambda event, _: sent.append(event))
    monkeypatch.setattr(tracking, "log_monitor_metrics", away)
    load(97)
    assert announcement.announce(monitor()) == []
    assert sent == ["warpgauge.drift.latency"]
    assert "could not keep the metrics: MLflow is away" in caplog.text


def test_order_whose_event_cannot_be_sent_runs_here(world: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def away(event: str, order: Any) -> None:
        raise ServiceUnavailableError("Prefect is away")

    monkeypatch.setattr(deployment, "has_automation", lambda _: True)
    monkeypatch.setattr(announcement, "_emit", away)
    load(97)
    decided = monitor()
    assert announcement.announce(decided) == decided["orders"] != []


def test_batch_refused_whole_trips_the_data_quality_signal(
    world: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tasks import validation

    load(50)
    validation._keep_refusal("gpu_samples", 1_000)
    found = {m.subject: m for m in monitoring.measure() if m.signal == "data_quality"}
    assert found["gpu_samples"].is_tripped
    assert "refused as a whole batch" in found["gpu_samples"].reason
    validation._keep_refusal("gpu_samples", 0)
    found = {m.subject: m for m in monitoring.measure() if m.signal == "data_quality"}
    assert not found["gpu_samples"].is_tripped


def test_outcome_of_a_retraining_is_told(world: Path) -> None:
    order = {"model_name": LAUNCH_LATENCY, "attempt_id": "e/1", "reason": "load", "signal": "residuals"}

    def state(completed: bool, result: Any = None) -> Any:
        return SimpleNamespace(is_completed=lambda: completed, result=lambda: result, message="out of memory")

    promoted = monitoring.record_outcome(order, state(True, {"outcome": "promote", "reasons": ["better"]}))
    skipped = monitoring.record_outcome(order, state(True, {"skip": True, "why": "same data"}))
    failed = monitoring.record_outcome(order, state(False))
    assert (promoted["outcome"], skipped["outcome"]) == ("promote: better", "not retrained: same data")
    told = monitoring.summarize({"decisions": []}, [promoted, skipped, failed])
    assert told["refused"] == ["retraining of launch-latency: failed: out of memory"]
    assert len(told["retrained"]) == 3
