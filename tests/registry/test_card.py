import math
from typing import Any

from warpgauge.registry.card import model_card

FACTS: dict[str, Any] = {
    "name": "launch-latency",
    "version": 4,
    "predicts": "CPU time of the first launch of a CUDA graph.",
    "unit": "us",
    "created_at": "2026-01-02T03:04:05+00:00",
    "intended_use": "Budgets before a launch.",
    "not_for": "GPUs that it has never seen.",
    "is_simulated": False,
    "label_provenance": "measured",
    "data_versions": {"launches": 7},
    "row_counts": {"train": 32000, "held out": 8000},
    "test_set_sha256": "ab12",
    "metrics": {"rmse_us": 26.54321, "coverage_ratio": 0.9, "mape": math.nan, "rows": 8000},
    "baseline_name": "linear in nodes",
    "baseline_metrics": {"rmse_us": 70.0},
    "slices": {"Tesla P100": {"rmse_us": 26.5, "rows": 8000}, "a|b\n# c <script>": {"rmse_us": None}},
    "limits": ["One GPU only."],
    "verdict": {"outcome": "hold", "reasons": ["worse in slice T4"]},
    "settings": {"latency_max_bin": 255},
    "environment": {"lightgbm": "4.7.0"},
}

GOLDEN = """# launch-latency, version 4

## What it predicts

CPU time of the first launch of a CUDA graph. Unit: us.

## Intended use

Budgets before a launch.

Not for: GPUs that it has never seen.

## Gate

**held for a reviewer**

- worse in slice T4

## Figures on the held-out rows

| figure | this version | linear in nodes |
|---|---|---|
| `rmse_us` | 26.54 | 70 |
| `coverage_ratio` | 0.9 | – |
| `mape` | not finite | – |
| `rows` | 8,000 | – |

## Slices

| slice | `rmse_us` | `rows` |
|---|---|---|
| Tesla P100 | 26.5 | 8,000 |
| a\\|b # c &lt;script&gt; | – | – |

## Data

- Labels: measured on real hardware
- Simulated: no
- Data versions: launches 7
- Rows: train 32,000, held out 8,000
- Test set SHA-256: `ab12`
- Created: 2026-01-02T03:04:05+00:00

## Limits

- One GPU only.

## Settings and environment

| setting | value |
|---|---|
| `latency_max_bin` | 255 |

| environment | value |
|---|---|
| `lightgbm` | 4.7.0 |
"""


def test_the_card_shows_each_figure_beside_the_baseline():
    assert model_card(FACTS) == GOLDEN


def test_a_simulated_version_says_so_first():
    card = model_card({**FACTS, "is_simulated": True, "label_provenance": None})
    assert card.splitlines()[2].startswith("> **Trained on simulated rows.**")
    assert "- Simulated: yes" in card
    assert "- Labels: SIMULATED" in card


def test_labels_that_are_not_human_are_called_proxy():
    for provenance in ("history", "proxy"):
        assert "- Labels: `proxy`" in model_card({**FACTS, "label_provenance": provenance})
    assert "`proxy`" not in model_card({**FACTS, "label_provenance": "human"})


def test_what_is_not_known_is_said_and_never_invented():
    card = model_card({})
    assert card.startswith("# not recorded, version not recorded\n")
    assert "- Simulated: not recorded" in card
    assert "Not judged yet." in card
    assert "Figures: not recorded." in card
    assert card.endswith("\n")
    assert not card.endswith("\n\n")
