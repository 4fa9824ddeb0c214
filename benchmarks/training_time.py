"""How long 100,000 rows x 142 features x 300 trees take to train here, beside plain LightGBM.

    python benchmarks/training_time.py [--turns 5]

Ours is `CategoricalBooster.fit`, what every training calls: frame in, checked trees with their table of inputs out.
Plain LightGBM gets the same numbers as one matrix with the same parameters. Both take turns on one thread (LightGBM's
threads spin beside another busy process); the medians and the middle of the paired ratios are shown.
"""

import argparse
import statistics
import sys
import time

import lightgbm
import numpy as np
import polars as pl

from warpgauge.accelerate import CPU
from warpgauge.latency.booster import CategoricalBooster
from warpgauge.latency.fitting import Boosting
from warpgauge.latency.launch_scheme import LAUNCH_SCHEME

ROWS, FEATURES, TREES, CATEGORICAL = 100_000, 142, 300, 4
MOST_RATIO = 1.10


def main() -> int:
    """Print the times; exit 1 if ours takes more than 10 % longer."""
    options = argparse.ArgumentParser(description="Time training beside plain LightGBM.")
    options.add_argument("--turns", type=int, default=5, help="how often each trains (default 5)")
    turns = options.parse_args().turns
    random = np.random.default_rng(0)
    numbers = random.normal(size=(ROWS, FEATURES - CATEGORICAL))
    codes = random.integers(0, 8, size=(ROWS, CATEGORICAL))
    target = numbers[:, 0] + np.sin(3 * numbers[:, 1]) + 0.3 * codes[:, 0] + random.normal(0, 0.1, ROWS)
    numeric = [f"x{place}" for place in range(numbers.shape[1])]
    kinds = [f"c{place}" for place in range(CATEGORICAL)]
    frame = pl.DataFrame(numbers, schema=numeric).with_columns(
        pl.Series(name, [f"v{code}" for code in codes[:, place]]) for place, name in enumerate(kinds)
    )
    matrix = np.hstack([numbers, codes.astype(float)])
    params = Boosting().lightgbm_params(LAUNCH_SCHEME, ROWS, seed=0, device=CPU, threads=1)

    def ours() -> None:
        CategoricalBooster.fit(frame, target, numeric, kinds, params, rounds=TREES)

    def plain() -> None:
        places = list(range(FEATURES - CATEGORICAL, FEATURES))
        data = lightgbm.Dataset(matrix, target, categorical_feature=places, params={"verbosity": -1})
        lightgbm.train({"verbosity": -1, **params}, data, TREES)

    times: dict[str, list[float]] = {"ours": [], "plain": []}
    for turn in range(turns):
        order = [("ours", ours), ("plain", plain)]
        for name, train in order if turn % 2 else reversed(order):
            start = time.perf_counter()
            train()
            times[name].append(time.perf_counter() - start)
    ratio = statistics.median(a / b for a, b in zip(times["ours"], times["plain"], strict=True))
    print(f"{ROWS:,} rows x {FEATURES} features x {TREES} trees, one thread, {turns} turns each")
    for name, found in times.items():
        print(f"{name}: median {statistics.median(found):.2f} s ({min(found):.2f} to {max(found):.2f})")
    print(f"ours / plain: {ratio:.3f} (at most {MOST_RATIO:.2f} is promised)")
    return 0 if ratio <= MOST_RATIO else 1


if __name__ == "__main__":
    sys.exit(main())
