"""How long help takes: `warpgauge --help` and the help of every command, each a process of its own.

    python benchmarks/help_time.py

The runs are interleaved, so that a busy moment of the machine falls on every command alike.
"""

import argparse
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))
RUNS = 10
LIMIT_S = 0.3


def command_words(parser: argparse.ArgumentParser, words: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    """The words of the program itself and of every command below it."""
    yield words
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, child in action.choices.items():
                yield from command_words(child, (*words, name))


def main() -> int:
    """Print the median of each, and whether all are under the limit."""
    from flows.__main__ import build_parser

    seconds: dict[tuple[str, ...], list[float]] = {words: [] for words in command_words(build_parser())}
    for _ in range(RUNS):
        for words, taken in seconds.items():
            start = time.perf_counter()
            subprocess.run(
                [sys.executable, "-m", "flows", *words, "--help"],
                cwd=ROOT,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            taken.append(time.perf_counter() - start)
    medians = {words: statistics.median(taken) for words, taken in seconds.items()}
    for words, median in medians.items():
        print(f"{median:.3f} s  {' '.join(['warpgauge', *words, '--help'])}")
    slowest = max(medians.values())
    is_met = slowest < LIMIT_S
    print(
        f"slowest median {slowest:.3f} s: {'all' if is_met else 'NOT all'} under {LIMIT_S} s, {RUNS} runs each"
    )
    return 0 if is_met else 1


if __name__ == "__main__":
    sys.exit(main())
