"""The monitor's own metrics, in the text that Prometheus reads.

Who watches the monitor must see that it ran, that it is not blind, and what it did. Gauges are of the newest round.
Counters go on from the text that was written last, because the table they count may forget its old rows; so they never
fall, and two monitors that write one file count each decision once: what was decided after the file's own round.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from warpgauge.drift.public_text import LONGEST_NAME, public
from warpgauge.drift.signal_state import OUTCOMES, PHASES
from warpgauge.drift.verdict import Round, cause_of, phase_of, worst_first
from warpgauge.tables import ACTIONS

if TYPE_CHECKING:
    from prometheus_client import Metric

# A signal has about ten series. More signals than this are counted and not shown, the quietest first.
MOST_SIGNALS = 500
LAST_RUN = "warpgauge_monitor_last_run_timestamp_seconds"
# A file whose round is later than the next one's by more than other monitors' rounds are apart had a wrong clock.
CLOCK_TOLERANCE = timedelta(hours=1)


@dataclass(frozen=True)
class Counts:
    """What was counted up to a round.

    Attributes:
        until: Time of that round; None where nothing was counted yet.
        decisions: By action.
        retrainings: By model and outcome.
        alerts: By cause.
    """

    until: datetime | None = None
    decisions: Mapping[str, int] = field(default_factory=dict)
    retrainings: Mapping[tuple[str, str], int] = field(default_factory=dict)
    alerts: Mapping[str, int] = field(default_factory=dict)

    def is_later(self, now: datetime) -> bool:
        """Whether a later round than this one was told already."""
        return self.until is not None and now < self.until <= now + CLOCK_TOLERANCE

    def count_on(
        self,
        now: datetime,
        decided: Sequence[tuple[str, str | None, int]],
        attempts: Sequence[Mapping[str, Any]],
    ) -> Counts:
        """The counts up to a round.

        Args:
            now: Its time.
            decided: What was decided after `until`, up to it: action, alert's cause or None, how many.
            attempts: Retrainings: `model_name`, `outcome`, `started_at`, and `wall_s`, None while they run.
        """
        decisions, alerts, retrainings = dict(self.decisions), dict(self.alerts), dict(self.retrainings)
        for action, cause, count in decided:
            decisions[action] = decisions.get(action, 0) + count
            if cause is not None:
                alerts[cause] = alerts.get(cause, 0) + count
        for one in attempts:
            if one.get("wall_s") is None:
                continue
            ended_at = one["started_at"] + timedelta(seconds=one["wall_s"])
            if ended_at <= now and (self.until is None or ended_at > self.until):
                key = (_label(one["model_name"]), _label(one["outcome"]))
                retrainings[key] = retrainings.get(key, 0) + 1
        return Counts(now, decisions, retrainings, alerts)


def read_counts(text: str) -> Counts:
    """The counts in a text that `to_text` wrote; none where it is another one, or damaged."""
    from prometheus_client.parser import text_string_to_metric_families

    decisions: dict[str, int] = {}
    retrainings: dict[tuple[str, str], int] = {}
    alerts: dict[str, int] = {}
    until = None
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name == LAST_RUN:
                    until = datetime.fromtimestamp(sample.value, UTC)
                elif sample.name == "warpgauge_decisions_total":
                    decisions[sample.labels["action"]] = int(sample.value)
                elif sample.name == "warpgauge_retrainings_total":
                    retrainings[sample.labels["model"], sample.labels["outcome"]] = int(sample.value)
                elif sample.name == "warpgauge_alerts_total":
                    alerts[sample.labels["cause"]] = int(sample.value)
    except (ValueError, KeyError, OverflowError, OSError):
        return Counts()
    return Counts() if until is None else Counts(until, decisions, retrainings, alerts)


def to_text(round_: Round, counts: Counts, duration_s: float | None = None) -> str:
    """The metrics of a round.

    Args:
        round_: The newest round.
        counts: Up to it.
        duration_s: How long it took; None where that is not known.
    """
    return exposed(_families(round_, counts, duration_s))


def exposed(families: Sequence[Metric]) -> str:
    """Metrics as text, by a registry of their own."""
    from prometheus_client import CollectorRegistry, generate_latest

    registry = CollectorRegistry()
    registry.register(Families(families))
    return generate_latest(registry).decode()


class Families:
    """A collector of metrics that are made already."""

    def __init__(self, families: Sequence[Metric]) -> None:
        self.families = families

    def collect(self) -> Iterator[Metric]:
        """The metrics."""
        yield from self.families


def _families(round_: Round, counts: Counts, duration_s: float | None) -> list[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    def gauge(name: str, meaning: str, value: float) -> Metric:
        return GaugeMetricFamily(name, meaning, value=value)

    measured = sum(row["status"] == "measured" for row in round_.rows)
    # Names that are alike once they are labels would be the same series twice, which Prometheus refuses.
    labelled = {(row["signal"], _label(row["subject"])): row for row in reversed(worst_first(round_.rows))}
    shown = list(reversed(labelled.values()))[:MOST_SIGNALS]
    families = [gauge(LAST_RUN, "When the monitor last decided.", round_.decided_at.timestamp())]
    if duration_s is not None:
        families.append(
            gauge(
                "warpgauge_monitor_run_duration_seconds",
                "Duration of the last round of the monitor, with the retrainings that ran within it.",
                duration_s,
            )
        )
    by_status = GaugeMetricFamily(
        "warpgauge_monitor_signals",
        "Signals of the last round, by whether there is a number.",
        labels=["status"],
    )
    by_status.add_metric(["measured"], measured)
    by_status.add_metric(["cannot_say"], len(round_.rows) - measured)
    families += [
        by_status,
        gauge(
            "warpgauge_monitor_signals_left_out",
            "Signals of the last round without series of their own: too many, or of the same name.",
            len(round_.rows) - len(shown),
        ),
        *_signal_families(shown),
        _opened(round_, {(row["signal"], row["subject"]) for row in shown}),
        *_counters(round_, counts),
    ]
    if round_.undelivered is not None:
        families.append(
            gauge(
                "warpgauge_alerts_undelivered",
                "Alerts that the webhook has not taken yet.",
                len(round_.undelivered),
            )
        )
    return families


def _signal_families(rows: Sequence[Mapping[str, Any]]) -> list[Metric]:
    from prometheus_client.core import GaugeMetricFamily

    names = ["signal", "subject"]
    numbers = {
        "value": GaugeMetricFamily(
            "warpgauge_signal_value", "What was measured, in the signal's unit.", labels=names
        ),
        "limit": GaugeMetricFamily("warpgauge_signal_limit", "Above it the signal is tripped.", labels=names),
        "sample_count": GaugeMetricFamily(
            "warpgauge_signal_samples",
            "Observations behind the value, or found where they were too few.",
            labels=names,
        ),
    }
    state = GaugeMetricFamily(
        "warpgauge_signal_state",
        "1 for the phase that the signal is in, 0 for the others.",
        labels=[*names, "phase"],
    )
    blind = GaugeMetricFamily(
        "warpgauge_signal_cannot_say", "1 where there is no number, and why.", labels=[*names, "cause"]
    )
    for row in rows:
        labels = [str(row["signal"]), _label(row["subject"])]
        for name, family in numbers.items():
            number = row[name]
            if number is not None and math.isfinite(number):
                family.add_metric(labels, number)
        phase = phase_of(row)
        for known in dict.fromkeys([*PHASES, phase]):
            state.add_metric([*labels, known], float(known == phase))
        if cause := cause_of(row):
            blind.add_metric([*labels, cause], 1.0)
    return [*numbers.values(), state, blind]


def _opened(round_: Round, shown: set[tuple[str, str]]) -> Metric:
    from prometheus_client.core import GaugeMetricFamily

    family = GaugeMetricFamily(
        "warpgauge_episode_opened_timestamp_seconds",
        "When the open episode of the signal began.",
        labels=["signal", "subject"],
    )
    opened = {
        (one.signal, one.subject): one.opened_at for one in round_.timeline.episodes if one.closed_at is None
    }
    for (signal, subject), opened_at in sorted(opened.items()):
        if (signal, subject) in shown:
            family.add_metric([signal, _label(subject)], opened_at.timestamp())
    return family


def _counters(round_: Round, counts: Counts) -> list[Metric]:
    """Counters begin at 0, so that the first of their kind is seen as an increase."""
    from prometheus_client.core import CounterMetricFamily

    decisions = CounterMetricFamily("warpgauge_decisions", "Decisions, by action.", labels=["action"])
    for action, count in sorted({**dict.fromkeys(ACTIONS, 0), **counts.decisions}.items()):
        decisions.add_metric([action], count)
    retrainings = CounterMetricFamily(
        "warpgauge_retrainings",
        "Retrainings that the monitor asked for and that ended.",
        labels=["model", "outcome"],
    )
    ended = [outcome for outcome in OUTCOMES if outcome != "running"]
    models = {_label(row["model_name"]) for row in round_.rows if row["model_name"]}
    known = dict.fromkeys(((model, outcome) for model in models for outcome in ended), 0)
    for (model, outcome), count in sorted({**known, **counts.retrainings}.items()):
        retrainings.add_metric([model, outcome], count)
    alerts = CounterMetricFamily("warpgauge_alerts", "Alerts, by cause.", labels=["cause"])
    for cause, count in sorted(counts.alerts.items()):
        alerts.add_metric([cause], count)
    return [decisions, retrainings, alerts]


def _label(text: object) -> str:
    """A name as a label's value: what would not be one line of text is replaced."""
    return public(text, LONGEST_NAME)
