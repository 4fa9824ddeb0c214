"""The README's figures of the documentation model, on the default headers and on public pull-request texts.

    python benchmarks/docquality_figures.py     # WARPGAUGE_BENCH_DATA, or ../shared/data beside the checkout

The headers come by way of pip, once; everything lies in a temporary store. Every figure is on held-out rows.
"""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
REPORT_MAP = "body=text,source=repo,source_id=commit,created_at=date"
COLUMNS = ("row_count", "defect_count", "auc", "auc_lower", "auc_upper", "keyword_auc")


def warpgauge(environment: dict[str, str], *words: str) -> dict[str, Any]:
    """The JSON answer of one command; a command that failed ends the benchmark with its message."""
    command = [str(Path(sys.executable).parent / "warpgauge"), *words, "--json"]
    done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, check=False)
    answer: dict[str, Any] = json.loads(done.stdout)
    if done.returncode != 0:
        sys.exit(
            f"{' '.join(words)}: exit {done.returncode}: {answer.get('message') or answer.get('refused')}"
        )
    return answer


def main() -> None:
    """Print one table for the headers and one for the reports."""
    data = Path(os.environ.get("WARPGAUGE_BENCH_DATA", ROOT.parent / "shared" / "data"))
    reports = data / "documents" / "pull_requests_cudf.jsonl.gz"
    sources = {"CUDA headers": ["cuda-headers:12.4.127,12.9.79,13.5.37"]}
    if reports.exists():
        sources["pull requests"] = [f"jsonl:{reports}", "--map", REPORT_MAP]
    else:
        print(f"{reports} is absent; docs/benchmarks.md says where it comes from", file=sys.stderr)
    for name, words in sources.items():
        with tempfile.TemporaryDirectory() as folder:
            environment = os.environ | {
                "WARPGAUGE_DATA_DIR": f"{folder}/data",
                "WARPGAUGE_MLFLOW_URI": f"sqlite:///{folder}/mlruns/mlflow.db",
            }
            warpgauge(environment, "collect", "documents", *words)
            trained = warpgauge(environment, "train", "docquality")
        print(f"\n{name}\n\n| slice | " + " | ".join(COLUMNS) + " |\n|---" * 1 + "|---" * len(COLUMNS) + "|")
        for row in trained["evaluation"]:
            figures = [
                f"{row[column]:.3f}" if "auc" in column else f"{row[column]:.0f}" for column in COLUMNS
            ]
            print(f"| {row['slice']} | " + " | ".join(figures) + " |")
        for note in trained["notes"]:
            print(f"- {note}")


if __name__ == "__main__":
    main()
