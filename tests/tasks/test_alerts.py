"""Alerts reach a person: told at once, kept until the webhook took each, in order, and once by its key."""

import http.server
import json
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from email.utils import format_datetime
from pathlib import Path
from typing import Any

import polars as pl
import pytest

from tasks import alerts, announcement, deployment
from tasks.storage import Store
from warpgauge.errors import ServiceUnavailableError
from warpgauge.tables import DECISIONS

BEGIN = datetime.now(UTC) - timedelta(hours=1)


@pytest.fixture(autouse=True)
def no_prefect_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the tester's own Prefect profile says."""
    monkeypatch.setattr(deployment, "server_url", lambda: None)


def decide(*names: str, cause: str | None = "not_cured", at: datetime | None = None) -> None:
    """Decisions of one round as the monitor keeps them; `names` are their ids, a second apart."""
    begin = at or BEGIN + timedelta(minutes=Store().read("decisions").collect().height)
    rows = [
        {
            "decision_id": name,
            "monitor_run_id": "run",
            "decided_at": begin + timedelta(seconds=number),
            "signal": "data_quality",
            "subject": "launches",
            "model_name": None,
            "status": "measured",
            "sample_count": 1,
            "action": "alert",
            "reason": f"because of {name}",
            "episode_id": f"episode of {name}",
            "alert_cause": cause,
            "state": "{}",
        }
        for number, name in enumerate(names)
    ]
    Store().append("decisions", DECISIONS.conform(pl.DataFrame(rows, infer_schema_length=None)))


def outcomes() -> dict[str, str]:
    rows = Store().read("alerts").collect()
    return dict(rows.select("alert_id", "outcome").iter_rows())


class Receiver:
    """A webhook that answers as it is told: a status, `close` without an answer, or `hang`.

    `got` are the alerts that it took, as it sees them; `asked` are all that it was sent.
    """

    def __init__(self) -> None:
        self.answers: list[int | str] = []
        self.headers: dict[str, str] = {}
        self.asked: list[dict[str, Any]] = []
        self.keys: list[str] = []
        self.got: list[str] = []
        self.released = threading.Event()


@pytest.fixture
def webhook(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    """A receiver at the address that the setting names; 200 where it is told nothing."""
    told = Receiver()

    class Hook(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            alert = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            told.asked.append(alert)
            told.keys.append(self.headers["Idempotency-Key"])
            answer = told.answers.pop(0) if told.answers else 200
            if answer == "hang":
                told.released.wait(20)
            if isinstance(answer, str):
                return
            self.send_response(answer)
            for name, value in told.headers.items():
                self.send_header(name, value)
            self.end_headers()
            if answer < 300 and alert["alert_id"] not in told.got:
                told.got.append(alert["alert_id"])

        def do_GET(self) -> None:
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Hook)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    monkeypatch.setenv(
        "WARPGAUGE_ALERT_WEBHOOK_URL", f"http://127.0.0.1:{server.server_port}/token-s3cret?key=s3cret"
    )
    yield told
    told.released.set()
    server.shutdown()
    server.server_close()


def test_alert_is_logged_and_kept_where_no_webhook_is_set(
    project: Path, caplog: pytest.LogCaptureFixture
) -> None:
    decide("a", "b")
    decide("quiet", cause=None)
    assert [alert["alert_id"] for alert in alerts.tell()] == ["a", "b"]
    assert "alert not_cured: data_quality of launches: because of a" in caplog.text
    assert outcomes() == {"a": "logged", "b": "logged"}
    assert alerts.tell() == []
    assert alerts.alert_counts() == [{"cause": "not_cured", "outcome": "logged", "count": 2}]


def test_nothing_decided_makes_no_table(project: Path, webhook: Receiver) -> None:
    assert alerts.tell() == []
    decide("quiet", cause=None)
    assert alerts.tell() == []
    assert alerts.alert_counts() == []
    assert not (project / "data" / "alerts").exists()


def test_webhook_gets_each_alert_whole_and_without_anything_of_this_machine(
    project: Path, webhook: Receiver
) -> None:
    decide("a")
    alerts.tell()
    assert webhook.asked == [
        {
            "source": "warpgauge",
            "alert_id": "a",
            "cause": "not_cured",
            "signal": "data_quality",
            "subject": "launches",
            "model_name": None,
            "reason": "because of a",
            "episode_id": "episode of a",
            "decided_at": BEGIN.isoformat(),
        }
    ]
    assert webhook.keys == ["a"]
    row = Store().read("alerts").collect().row(0, named=True)
    assert (row["outcome"], row["trouble"], row["refusal_count"]) == ("delivered", None, 0)
    assert row["delivered_at"] > row["decided_at"]


@pytest.mark.parametrize("trouble", [500, 503, "close", "hang", 429, 408])
def test_receiver_that_fails_and_recovers_gets_each_alert_once_and_in_order(
    project: Path,
    webhook: Receiver,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    trouble: int | str,
) -> None:
    monkeypatch.setattr(alerts, "WEBHOOK_TIMEOUT_S", 0.3)
    webhook.answers = [200, trouble]
    decide("a", "b", "c")
    alerts.tell()
    assert outcomes() == {"a": "delivered", "b": "waiting", "c": "waiting"}
    assert "did not take an alert" in caplog.text
    assert "2 wait for the next round" in caplog.text
    webhook.answers = [trouble, trouble]
    decide("d")
    alerts.tell()
    alerts.tell()
    version = Store().version("alerts")
    webhook.answers = [trouble]
    alerts.tell()
    # A receiver that stays away makes the table no longer.
    assert Store().version("alerts") == version
    alerts.tell()
    assert webhook.got == ["a", "b", "c", "d"]
    assert set(outcomes().values()) == {"delivered"}
    asked = len(webhook.asked)
    alerts.tell()
    assert len(webhook.asked) == asked
    assert "s3cret" not in caplog.text
    assert "s3cret" not in Store().read("alerts").collect().write_json()


def test_receiver_that_took_it_and_could_not_say_so_gets_the_same_key_again(
    project: Path, webhook: Receiver
) -> None:
    webhook.answers = ["close"]
    decide("a")
    alerts.tell()
    alerts.tell()
    assert webhook.keys == ["a", "a"]
    assert webhook.asked[0] == webhook.asked[1]
    assert outcomes() == {"a": "delivered"}


@pytest.mark.parametrize("wait", ["3600", "date"])
def test_receiver_that_asks_to_wait_is_left_alone_until_then(
    project: Path, webhook: Receiver, wait: str
) -> None:
    ahead = datetime.now(UTC) + timedelta(hours=1)
    webhook.headers = {"Retry-After": format_datetime(ahead, usegmt=True) if wait == "date" else wait}
    webhook.answers = [429]
    decide("a", "b")
    alerts.tell()
    row = Store().read("alerts").filter(pl.col("alert_id") == "a").collect().row(0, named=True)
    assert abs(row["not_before"] - ahead) < timedelta(minutes=1)
    alerts.tell()
    assert len(webhook.asked) == 1
    elapse("not_before", timedelta(hours=2))
    alerts.tell()
    assert webhook.got == ["a", "b"]


@pytest.mark.parametrize("said", ["-5", "soon", "", "9" * 400, "Mon, 99 Foo 2026 99:99:99 GMT", "1e3"])
def test_wait_that_makes_no_sense_or_is_endless_is_bounded(
    project: Path, webhook: Receiver, said: str
) -> None:
    webhook.headers = {"Retry-After": said}
    webhook.answers = [503]
    decide("a")
    alerts.tell()
    (until,) = Store().read("alerts").collect()["not_before"]
    assert until is None or until < datetime.now(UTC) + timedelta(hours=7)


def elapse(column: str, time: timedelta) -> None:
    """Let time pass for what is kept of the alerts."""
    store = Store()
    rows = store.read("alerts").collect().with_columns(pl.col(column) - time)
    assert store.replace("alerts", rows, store.version("alerts"))


@pytest.mark.parametrize("status", [400, 401, 404, 410, 301, 302, 307])
def test_alert_that_is_refused_is_not_tried_for_ever_and_the_next_one_gets_through(
    project: Path, webhook: Receiver, caplog: pytest.LogCaptureFixture, status: int
) -> None:
    webhook.headers = {"Location": "/elsewhere", "Retry-After": "3600"}
    decide("bad", "good")
    for _ in range(alerts.REFUSAL_LIMIT):
        webhook.answers = [status]
        alerts.tell()
    assert webhook.keys == ["bad"] * alerts.REFUSAL_LIMIT + ["good"]
    assert outcomes() == {"bad": "dropped", "good": "delivered"}
    assert f"alert not_cured of launches was dropped: it answered {status}" in caplog.text


def test_refused_alert_whose_receiver_was_mended_in_time_is_delivered(
    project: Path, webhook: Receiver
) -> None:
    webhook.answers = [401, 401]
    decide("a")
    for _ in range(3):
        alerts.tell()
    assert (webhook.got, outcomes()) == (["a"], {"a": "delivered"})


def test_alert_that_waited_too_long_is_dropped_said_and_counted(
    project: Path, webhook: Receiver, caplog: pytest.LogCaptureFixture
) -> None:
    webhook.answers = [500]
    decide("old", at=datetime.now(UTC) - timedelta(hours=71))
    decide("new")
    alerts.tell()
    elapse("decided_at", timedelta(hours=2))
    alerts.tell()
    assert webhook.got == ["new"]
    assert "1 alerts were dropped: waited longer than 72 hours" in caplog.text
    assert alerts.alert_counts() == [
        {"cause": "not_cured", "outcome": "delivered", "count": 1},
        {"cause": "not_cured", "outcome": "dropped", "count": 1},
    ]
    kept = Store().read("alerts").filter(pl.col("outcome") == "dropped").collect()
    assert "it answered 500" in kept["trouble"][0]


def test_of_a_storm_the_newest_are_kept(
    project: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "WAITING_LIMIT", 3)
    decide(*(f"alert {number}" for number in range(5)))
    alerts.tell()
    assert webhook.got == ["alert 2", "alert 3", "alert 4"]
    assert alerts.alert_counts()[1] == {"cause": "not_cured", "outcome": "dropped", "count": 2}


def test_slow_receiver_does_not_hold_up_the_monitor(
    project: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(alerts, "ROUND_LIMIT_S", 0.2)
    monkeypatch.setattr(alerts, "_post", slow(alerts._post))
    decide("a", "b", "c")
    alerts.tell()
    assert webhook.got == ["a"]
    monkeypatch.setattr(alerts, "ROUND_LIMIT_S", 60.0)
    alerts.tell()
    assert webhook.got == ["a", "b", "c"]


def slow(post: Any) -> Any:
    def posted(*arguments: Any) -> Any:
        time.sleep(0.3)
        return post(*arguments)

    return posted


def test_alert_survives_a_process_that_dies_after_it_decided(
    project: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide("a")
    whole = Store.append

    def killed(self: Store, name: Any, frame: pl.DataFrame) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(Store, "append", killed)
    with pytest.raises(KeyboardInterrupt):
        alerts.tell()
    monkeypatch.setattr(Store, "append", whole)
    alerts.tell()
    assert webhook.got == ["a"]


def test_process_that_dies_after_it_sent_sends_that_one_again_and_no_other(
    project: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide("a", "b", "c")
    whole = alerts._keep

    def killed(store: Store, rows: list[dict[str, Any]]) -> None:
        if rows[0]["alert_id"] == "b":
            raise KeyboardInterrupt
        whole(store, rows)

    monkeypatch.setattr(alerts, "_keep", killed)
    with pytest.raises(KeyboardInterrupt):
        alerts.tell()
    monkeypatch.setattr(alerts, "_keep", whole)
    alerts.tell()
    assert webhook.keys == ["a", "b", "b", "c"]
    assert webhook.got == ["a", "b", "c"]


def test_other_monitor_that_writes_meanwhile_loses_nothing(
    project: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch
) -> None:
    decide("a")
    whole = Store.replace

    def overtaken(self: Store, *arguments: Any) -> bool:
        monkeypatch.setattr(Store, "replace", whole)
        decide("b")
        alerts.tell()
        return whole(self, *arguments)

    monkeypatch.setattr(Store, "replace", overtaken)
    alerts.tell()
    assert outcomes() == {"a": "delivered", "b": "delivered"}
    assert webhook.got == ["a", "b"]


def test_webhook_that_is_set_later_gets_what_is_new(
    project: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    decide("before")
    alerts.tell()
    webhook: Receiver = request.getfixturevalue("webhook")
    decide("after")
    alerts.tell()
    assert webhook.got == ["after"]


@pytest.mark.parametrize(
    "url",
    [
        "http://127.0.0.1:1/s3cret",
        "http://nosuch.invalid/s3cret",
        "https://127.0.0.1:1/s3cret",
        "s3cret",
        "file:///s3cret",
        "http://[s3cret",
        "http://host:s3cret/",
        "http://ho st/s3cret\n",
    ],
)
def test_webhook_that_cannot_be_reached_stops_nothing_and_is_not_shown(
    project: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, url: str
) -> None:
    monkeypatch.setenv("WARPGAUGE_ALERT_WEBHOOK_URL", url)
    decide("a")
    alerts.tell()
    assert outcomes() == {"a": "waiting"}
    assert "webhook" in caplog.text
    assert "s3cret" not in caplog.text
    assert "s3cret" not in Store().read("alerts").collect().write_json()


def test_server_that_speaks_no_tls_is_told_without_its_address(
    project: Path, webhook: Receiver, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import os

    monkeypatch.setenv(
        "WARPGAUGE_ALERT_WEBHOOK_URL", os.environ["WARPGAUGE_ALERT_WEBHOOK_URL"].replace("http", "https")
    )
    decide("a")
    alerts.tell()
    assert "TLS" in caplog.text
    assert "s3cret" not in caplog.text


def test_alert_is_an_event_named_by_its_cause_with_the_same_id_each_time(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import prefect.events

    sent: list[tuple[str, dict[str, Any]]] = []
    monkeypatch.setattr(deployment, "server_url", lambda: "http://server/api")
    monkeypatch.setattr(prefect.events, "emit_event", lambda event, **facts: sent.append((event, facts)))
    decide("a")
    (alert,) = alerts.tell()
    alerts._emit(alert)
    (event, facts), (_, again) = sent
    assert event == "warpgauge.alert.not_cured"
    assert event in deployment.emitted_events()
    assert set(facts["payload"]) == set(deployment.ALERT_FIELDS)
    assert facts["id"] == again["id"]
    assert facts["resource"]["prefect.resource.id"] == "warpgauge.signal.data_quality.launches"


def test_long_reason_is_cut_and_a_strange_one_sent(project: Path, webhook: Receiver) -> None:
    store = Store()
    decide("a", "b")
    rows = (
        store.read("decisions")
        .collect()
        .with_columns(
            reason=pl.when(pl.col("decision_id") == "a")
            .then(pl.lit("x" * 100_000))
            .otherwise(pl.lit("µs ☃ \x00 \"'"))
        )
    )
    assert store.replace("decisions", rows, store.version("decisions"))
    alerts.tell()
    assert len(webhook.asked[0]["reason"]) == 5000
    assert webhook.asked[1]["reason"] == "µs ☃ \x00 \"'"


def test_store_that_is_away_stops_neither_the_orders_nor_the_round(
    registry: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def away() -> None:
        raise ServiceUnavailableError("disk full")

    monkeypatch.setattr(alerts, "tell", away)
    order = {"model_name": "doc-quality", "attempt_id": "e/1", "reason": "drift"}
    decided = {"decisions": [], "orders": [order], "review": [], "alerts": []}
    assert announcement.announce(decided) == [order]
    assert "could not tell the alerts: disk full" in caplog.text


def test_announcing_tells_what_was_decided(registry: Path, webhook: Receiver) -> None:
    decide("a")
    announcement.announce({"decisions": [], "orders": [], "review": [], "alerts": []})
    assert webhook.got == ["a"]
