"""How long one prediction takes from Python, and a batch: the compiled predictor against LightGBM's ways.

    python benchmarks/prediction_speed.py [--rows 20000] [--trees 200] [--leaves 31]

200 trees x 31 leaves x 142 features, all of them used, 20 with missing values, 4 categorical. Timed from a float64
row to a Python float, over rows that differ from call to call and were made before. The ways take turns every
few hundred rows, so that a busy moment of the machine falls on each. The C call is given its pointers ready-made
(LGBM_BoosterPredictForMatSingleRowFast with one thread): it is timed at its best. The clock's own cost is in
every figure, and stands in a line of its own.
"""

import argparse
import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
FEATURES = 142
CATEGORICAL = [138, 139, 140, 141]
MISSING = slice(60, 80)
TURN_ROWS = 250
# Booster.predict takes ten times as long as the rest, so it answers a share of the rows.
SLOW_SHARE = 10
LEAST_RATIO = 3.5
AIM_RATIO = 8.0
BATCHES = (1, 100, 10_000)

FloatArray = npt.NDArray[np.float64]


def make_rows(rows: int, seed: int) -> FloatArray:
    """Normal, rounded and categorical columns, a tenth of 20 columns missing."""
    random = np.random.default_rng(seed)
    matrix = random.standard_normal((rows, FEATURES))
    matrix[:, 100:120] = np.round(matrix[:, 100:120] * 3)
    matrix[:, CATEGORICAL] = random.integers(0, 12, (rows, len(CATEGORICAL)))
    matrix[:, MISSING][random.random((rows, 20)) < 0.1] = np.nan
    return matrix


def train(trees: int, leaves: int) -> str:
    """The text of a model whose target depends on every column."""
    import lightgbm

    matrix = make_rows(20_000, seed=3)
    random = np.random.default_rng(4)
    numbers = np.nan_to_num(matrix[:, :138])
    target = numbers @ random.standard_normal(138) + 3 * np.sin(2 * numbers[:, 0])
    target += matrix[:, 138] % 3 + 2 * (matrix[:, 139] % 4 == 1) + random.standard_normal(len(matrix))
    data = lightgbm.Dataset(
        matrix, target, categorical_feature=CATEGORICAL, params={"verbosity": -1, "num_threads": 1}
    )
    params = {
        "objective": "regression",
        "num_leaves": leaves,
        "learning_rate": 0.05,
        "feature_fraction": 0.3,
        "num_threads": 1,
        "seed": 1,
        "deterministic": True,
        "verbosity": -1,
    }
    return lightgbm.train(params, data, trees).model_to_string()


def c_call(text: str) -> tuple[Callable[[ctypes.c_void_p], float], object]:
    """LightGBM's single-row C call on a ready-made pointer, and what must stay alive with it."""
    import lightgbm

    booster = lightgbm.Booster(model_str=text)
    library = lightgbm.basic._LIB
    settings = ctypes.c_void_p()
    code = library.LGBM_BoosterPredictForMatSingleRowFastInit(
        booster._handle,
        ctypes.c_int(0),
        ctypes.c_int(0),
        ctypes.c_int(-1),
        ctypes.c_int(1),
        ctypes.c_int32(FEATURES),
        ctypes.c_char_p(b"num_threads=1"),
        ctypes.byref(settings),
    )
    if code:
        raise SystemExit("LightGBM's single-row call could not be set up")
    length, answer = ctypes.c_int64(), ctypes.c_double()
    length_at, answer_at = ctypes.byref(length), ctypes.byref(answer)
    function = library.LGBM_BoosterPredictForMatSingleRowFast

    def call(pointer: ctypes.c_void_p) -> float:
        function(settings, pointer, length_at, answer_at)
        return answer.value

    return call, booster


def time_calls(ways: dict[str, tuple[Callable, list, int]], rows: int) -> dict[str, tuple[list, list]]:
    """Nanoseconds of every call and its answer, in turns of a few hundred rows."""
    clock = time.perf_counter_ns
    found: dict[str, tuple[list, list]] = {name: ([], []) for name in ways}
    for start in range(0, rows, TURN_ROWS):
        for name, (call, inputs, share) in ways.items():
            taken, answers = found[name]
            for item in inputs[start : start + TURN_ROWS // share]:
                before = clock()
                answer = call(item)
                after = clock()
                taken.append(after - before)
                answers.append(answer)
    return found


def time_batches(ways: dict[str, Callable], matrix: FloatArray) -> dict[int, dict[str, float]]:
    """Median microseconds of a batch of each size, interleaved."""
    medians: dict[int, dict[str, float]] = {}
    for size in BATCHES:
        taken: dict[str, list[int]] = {name: [] for name in ways}
        for turn in range(max(5, min(1_000, 20_000 // size))):
            start = turn * size % max(1, len(matrix) - size + 1)
            batch = matrix[start : start + size]
            for name, call in ways.items():
                before = time.perf_counter_ns()
                call(batch)
                taken[name].append(time.perf_counter_ns() - before)
        medians[size] = {name: float(np.median(values)) / 1e3 for name, values in taken.items()}
    return medians


def time_features() -> float:
    """Median microseconds to build the features of one launch from its row."""
    from warpgauge.latency.features import build_features
    from warpgauge.launches.simulator import simulate_launches

    launches = simulate_launches(seed=1, lengths=(10, 50), trials=10).frame
    taken = []
    for place in range(0, 200):
        launch = launches[place : place + 1]
        before = time.perf_counter_ns()
        build_features(launch)
        taken.append(time.perf_counter_ns() - before)
    return float(np.median(taken)) / 1e3


def main() -> int:
    """Print the table; 1 if an answer differs or the least ratio is missed."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--trees", type=int, default=200)
    parser.add_argument("--leaves", type=int, default=31)
    options = parser.parse_args()

    import lightgbm

    from warpgauge.latency.predictor import Predictor

    text = train(options.trees, options.leaves)
    before = time.perf_counter()
    Predictor.compile(text)
    first_s = time.perf_counter() - before
    before = time.perf_counter()
    predictor = Predictor.compile(text)
    next_s = time.perf_counter() - before
    booster = lightgbm.Booster(model_str=text)
    matrix = make_rows(options.rows, seed=5)
    rows = [row.copy() for row in matrix]
    pointers = [ctypes.c_void_p(row.ctypes.data) for row in rows]
    call, _alive = c_call(text)
    ways: dict[str, tuple[Callable, list, int]] = {
        "nothing (the clock)": (lambda _row: 0.0, rows, 1),
        f"Predictor.predict_row ({predictor.engine})": (predictor.predict_row, rows, 1),
        "LightGBM single-row C call": (call, pointers, 1),
        "LightGBM Booster.predict": (
            lambda row: float(booster.predict(row.reshape(1, -1), num_threads=1)[0]),
            rows,
            SLOW_SHARE,
        ),
    }
    found = time_calls(ways, options.rows)
    print(
        f"{options.trees} trees x {options.leaves} leaves x {FEATURES} features, model text {len(text) / 1e6:.2f} MB, "
        f"{options.rows} rows that differ"
    )
    print(f"{'':40s} {'p50 us':>8s} {'p99 us':>8s}")
    medians = []
    for name, (taken, _) in found.items():
        p50, p99 = np.percentile(taken, [50, 99]) / 1e3
        medians.append(p50)
        print(f"{name:40s} {p50:8.2f} {p99:8.2f}")
    ratio = medians[2] / medians[1]
    print(f"p50 ratio to the C call: {ratio:.1f} (at least {LEAST_RATIO}, aim {AIM_RATIO:.0f})")
    (_, ours), (_, theirs) = list(found.values())[1:3]
    is_same = ours == theirs
    print(f"answers equal to the C call's to the last bit: {is_same}")
    print(
        f"first predictor of a process {first_s:.2f} s (compiles the kernel), the next {next_s * 1e3:.0f} ms"
    )
    for size, batch in time_batches(
        {"Predictor": predictor.predict, "Booster": lambda part: booster.predict(part, num_threads=1)}, matrix
    ).items():
        print(
            f"batch of {size:6d} rows: Predictor.predict {batch['Predictor']:10.1f} us, "
            f"Booster.predict {batch['Booster']:10.1f} us, {batch['Booster'] / batch['Predictor']:.1f} x"
        )
    print(f"apart: features of one launch {time_features():.0f} us")
    return 0 if is_same and ratio >= LEAST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
