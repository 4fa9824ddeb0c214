"""False alarms and power of the embedding signals, on real texts and on heavy-tailed simulations.

    python benchmarks/embedding_drift.py [--json]    # WARPGAUGE_BENCH_DATA, or ../shared/data beside the checkout

The 1,417 pull-request texts are embedded once (cached). A reference is a random half of them; windows of 200 are drawn
without replacement from the other half, so reference and windows differ by what any two samples of one population do.
20 references are drawn anew, with 1,000 windows each. The simulations have the texts' own spectrum of variances.

Detection is the share of runs in which one of three windows of 200 in a row trips, at the same limits.
"""

import argparse
import json
import math
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import polars as pl
from bench_data import ROOT, bench_folder

sys.path.insert(0, str(ROOT))
REFERENCES, WINDOWS, ROWS = 20, 1000, 200
RUNS_A_REFERENCE, WINDOWS_A_RUN = 10, 3
RATIO = 0.001
AXIS = 3
Draw = Callable[[np.random.Generator, int], np.ndarray]


def main() -> int:
    """Print both tables; exit 1 if a signal fires more often than stated or finds less than it should."""
    options = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    options.add_argument("--json", action="store_true")
    options.add_argument("--references", type=int, default=REFERENCES)
    given = options.parse_args()
    data = bench_folder("documents")
    if data is None:
        return 2
    texts, others = _embeddings(data)
    false_alarms = [
        _false_alarms(name, *pools, given.references) for name, pools in _populations(texts).items()
    ]
    detections = _detections(texts, others, given.references)
    if given.json:
        print(json.dumps({"false_alarms": false_alarms, "detections": detections}, indent=1))
    else:
        _show(false_alarms, detections)
    fires_too_often = any(
        row["fired"][signal] > row["allowed"] for row in false_alarms for signal in row["fired"]
    )
    misses = any(row["is_asked"] and row["within_3"] < 0.95 for row in detections)
    return 1 if fires_too_often or misses else 0


def _embeddings(data: Any) -> tuple[np.ndarray, np.ndarray]:
    """Different embeddings of the pull-request texts, and of sections of documentation before a fix."""
    from tasks.embedding import embed, load_encoder
    from warpgauge.documents.batch import document_row, documents_frame

    encoder = load_encoder()

    def of(file: str, title: str, body: str) -> np.ndarray:
        rows = (
            pl.read_ndjson((data / file).read_bytes()) if not file.endswith(".gz") else _unpacked(data / file)
        )
        documents = documents_frame(
            [
                document_row(
                    source=file,
                    source_id=str(number),
                    family="report",
                    title=row.get(title),
                    body=row[body],
                    code=None,
                )
                for number, row in enumerate(rows.iter_rows(named=True))
            ]
        )
        return np.unique(np.asarray(embed(documents, encoder), dtype=np.float64), axis=0)

    return of("pull_requests_cudf.jsonl.gz", "title", "text"), of("doc_fix_pairs.jsonl.gz", "", "before")


def _unpacked(path: Any) -> pl.DataFrame:
    import gzip

    return pl.read_ndjson(gzip.decompress(path.read_bytes()), infer_schema_length=None)


def _populations(
    texts: np.ndarray,
) -> dict[str, tuple[Callable[[np.random.Generator], tuple[np.ndarray, Draw]]]]:
    """Name -> how a reference and the windows that belong to it are drawn."""
    centred = texts - texts.mean(axis=0)
    deviations = np.linalg.svd(centred, compute_uv=False)[:60] / math.sqrt(len(texts))

    def real(random: np.random.Generator) -> tuple[np.ndarray, Draw]:
        order = random.permutation(len(texts))
        rest = texts[order[len(texts) // 2 :]]
        return texts[order[: len(texts) // 2]], lambda r, n: rest[r.choice(len(rest), n, replace=False)]

    def simulated(scale: Callable[[np.random.Generator, int], np.ndarray]) -> Any:
        def draw(random: np.random.Generator, count: int) -> np.ndarray:
            rows = random.standard_normal((count, len(deviations))) * deviations
            return np.asarray(rows * scale(random, count)[:, None])

        return lambda random: (draw(random, len(texts) // 2), draw)

    return {
        "real texts": (real,),
        "Student t, 4 degrees": (simulated(lambda r, n: 1 / np.sqrt(r.chisquare(4, n) / 4)),),
        "Student t, 3 degrees": (simulated(lambda r, n: 1 / np.sqrt(r.chisquare(3, n) / 3)),),
        "1 row in 20 four times as far": (simulated(lambda r, n: np.where(r.random(n) < 0.05, 4.0, 1.0)),),
    }


def _false_alarms(name: str, make: Any, references: int) -> dict[str, Any]:
    from warpgauge.drift.components import SIGNALS, fit_reference, measure_embeddings

    fired = np.zeros((references, len(SIGNALS) + 1), dtype=int)
    is_silent_when_small = True
    for number in range(references):
        random = np.random.default_rng([1, number])
        rows, draw = make(random)
        reference = fit_reference(rows, encoder_id="e", seed=number, false_alarm_ratio=RATIO)
        for _ in range(WINDOWS):
            tripped = [m.is_tripped for m in measure_embeddings(reference, draw(random, ROWS), "e")]
            fired[number] += [*tripped, any(tripped)]
        small = measure_embeddings(reference, draw(random, 49), "e")
        is_silent_when_small &= all(m.status == "cannot_say" for m in small)
    count = references * WINDOWS
    expected = RATIO * count
    return {
        "population": name,
        "windows": count,
        "fired": dict(zip(SIGNALS, map(int, fired.sum(axis=0)), strict=False)),
        "any": int(fired[:, -1].sum()),
        "allowed": expected + 2 * math.sqrt(expected),
        "clustered_standard_error": {
            signal: float(fired[:, i].std(ddof=1) * math.sqrt(references)) for i, signal in enumerate(SIGNALS)
        },
        "most_in_one_reference": dict(zip(SIGNALS, map(int, fired.max(axis=0)), strict=False)),
        "cannot_say_below_minimum": bool(is_silent_when_small),
    }


def _detections(texts: np.ndarray, others: np.ndarray, references: int) -> list[dict[str, Any]]:
    from warpgauge.drift.components import SIGNALS, fit_reference, measure_embeddings

    kinds = {
        "unchanged": False,
        "axis 3 x 1.6, scores scaled": True,
        "axis 3 x 1.6, texts chosen": True,
        "axis 3 x 1.4, scores scaled": False,
        "20 % documentation sections": True,
        "20 % of one kind of pull request": False,
        "mean shift of 0.35 sd on axis 3": False,
        "mean shift of 0.5 sd on axis 3": False,
        "mean shift of 0.75 sd on axis 3": True,
    }
    runs: dict[str, list[list[bool]]] = {kind: [] for kind in kinds}
    for number in range(references):
        random = np.random.default_rng([2, number])
        # A kind of its own: the texts nearest to one of them, of which the reference holds none.
        near = np.argsort(((texts - texts[random.integers(len(texts))]) ** 2).sum(axis=1))[: len(texts) // 8]
        rest = np.setdiff1d(np.arange(len(texts)), near)
        order = random.permutation(len(texts))
        half, pool = texts[order[: len(texts) // 2]], texts[order[len(texts) // 2 :]]
        mixed = random.permutation(rest)
        without, pool_without = texts[mixed[: len(rest) // 2]], texts[mixed[len(rest) // 2 :]]
        reference = fit_reference(half, encoder_id="e", seed=number, false_alarm_ratio=RATIO)
        narrow = fit_reference(without, encoder_id="e", seed=number, false_alarm_ratio=RATIO)
        axis, deviation = reference.axes[AXIS - 1], math.sqrt(reference.held_out_variances[AXIS - 1])
        weights = _weights_of_windows((pool - pool.mean(axis=0)) @ axis, 1.6, random)
        for kind in kinds:
            for _ in range(RUNS_A_REFERENCE):
                trips = []
                for _ in range(WINDOWS_A_RUN):
                    window, against = pool[random.choice(len(pool), ROWS, replace=False)], reference
                    if kind.startswith("axis 3") and "scaled" in kind:
                        factor = math.sqrt(1.6 if "1.6" in kind else 1.4) - 1
                        scores = (window - window.mean(axis=0)) @ axis
                        window = window + factor * scores[:, None] * axis
                    elif "chosen" in kind:
                        window = pool[random.choice(len(pool), ROWS, replace=False, p=weights)]
                    elif "sections" in kind:
                        window[: ROWS // 5] = others[random.choice(len(others), ROWS // 5, replace=False)]
                    elif "one kind" in kind:
                        window = pool_without[random.choice(len(pool_without), ROWS, replace=False)]
                        window[: ROWS // 5] = texts[random.choice(near, ROWS // 5, replace=False)]
                        against = narrow
                    elif "mean" in kind:
                        window = window + float(kind.split()[3]) * deviation * axis
                    tripped = [m.is_tripped for m in measure_embeddings(against, window, "e")]
                    rule = float(((window @ axis).var(ddof=1)) / reference.variances[AXIS - 1] - 1) > 0.40
                    trips.append([*tripped, any(tripped), rule])
                runs[kind].append(trips)  # type: ignore[arg-type]
    found = []
    for kind, is_asked in kinds.items():
        trips = np.asarray(runs[kind])
        found.append(
            {
                "change": kind,
                "runs": len(trips),
                "is_asked": is_asked,
                "within_3": float(trips[:, :, -2].any(axis=1).mean()),
                "window": float(trips[:, :, -2].mean()),
                **{signal: float(trips[:, :, i].mean()) for i, signal in enumerate(SIGNALS)},
                "rule_alone": float(trips[:, :, -1].mean()),
            }
        )
    return found


def _weights_of_windows(scores: np.ndarray, ratio: float, random: np.random.Generator) -> np.ndarray:
    """Weights whose windows, drawn without replacement, have that variance ratio: a little more than it is asked of them."""
    low, high = 1.0, 4.0
    for _ in range(12):
        asked = (low + high) / 2
        weights = _variance_weights(scores, asked)
        drawn = [
            scores[random.choice(len(scores), ROWS, replace=False, p=weights)].var(ddof=1) for _ in range(200)
        ]
        low, high = (asked, high) if np.mean(drawn) / scores.var(ddof=1) < ratio else (low, asked)
    return _variance_weights(scores, (low + high) / 2)


def _variance_weights(scores: np.ndarray, ratio: float) -> np.ndarray:
    """Chances of drawing each row so that the variance of the scores is `ratio` times theirs and their mean is kept.

    Exponential tilting in the score and its square: the weights that change the population least (Csiszar 1975).
    """
    from scipy.optimize import root

    z = (scores - scores.mean()) / scores.std()
    features = np.column_stack([z, z**2])

    def gap(theta: np.ndarray) -> np.ndarray:
        logits = features @ theta
        p = np.exp(logits - logits.max())
        p /= p.sum()
        return np.asarray([p @ z, p @ z**2 - (p @ z) ** 2 - ratio])

    solved = root(gap, np.array([0.0, 0.1]))
    if not solved.success:
        raise SystemExit(f"no weights give a variance of {ratio}: {solved.message}")
    logits = features @ solved.x
    p = np.exp(logits - logits.max())
    return np.asarray(p / p.sum())


def _show(false_alarms: list[dict[str, Any]], detections: list[dict[str, Any]]) -> None:
    signals = list(false_alarms[0]["fired"])
    print(
        f"| no change: windows of {ROWS} | windows | allowed | "
        + " | ".join(signals)
        + " | any of them | below the minimum |"
    )
    print("|" + "---|" * (len(signals) + 5))
    for row in false_alarms:
        cells = [
            f"{row['fired'][s]} (+-{row['clustered_standard_error'][s]:.0f}, most in one reference {row['most_in_one_reference'][s]})"
            for s in signals
        ]
        small = "cannot say" if row["cannot_say_below_minimum"] else "MEASURED"
        print(
            f"| {row['population']} | {row['windows']} | {row['allowed']:.0f} | {' | '.join(cells)} | {row['any']} | {small} |"
        )
    print(f"\n| change | within 3 windows | a window | {' | '.join(signals)} | 40 % rule alone |")
    print("|" + "---|" * (len(signals) + 4))
    for row in detections:
        cells = [f"{row[s]:.1%}" for s in signals]
        print(
            f"| {row['change']} | {row['within_3']:.1%} | {row['window']:.1%} | {' | '.join(cells)} | {row['rule_alone']:.1%} |"
        )


if __name__ == "__main__":
    sys.exit(main())
