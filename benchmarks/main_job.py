"""How long the main job takes: the first run, and a second one that finds nothing new.

    python benchmarks/main_job.py               # on the defaults: headers by way of pip, simulated launches
    python benchmarks/main_job.py --launches 'PATH' ... (any option of `warpgauge run`)

Each run is a process of its own, on a store in a temporary folder.
"""

import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

RUNS = ("first run", "second run")


def main() -> int:
    """Print a line for each run."""
    with tempfile.TemporaryDirectory() as folder:
        environment = os.environ | {
            "WARPGAUGE_DATA_DIR": f"{folder}/data",
            "WARPGAUGE_MLFLOW_URI": f"sqlite:///{folder}/mlruns/mlflow.db",
        }
        for name in RUNS:
            start = time.perf_counter()
            done = subprocess.run(
                [Path(sys.executable).parent / "warpgauge", "run", "--json", *sys.argv[1:]],
                env=environment,
                stdout=subprocess.PIPE,
                check=False,
            )
            seconds = time.perf_counter() - start
            result = json.loads(done.stdout)
            added = ", ".join(f"{row['table']} +{row['added']}" for row in result["tables"])
            said = ", ".join(str(model.get("outcome") or "not retrained") for model in result["models"])
            print(f"{name}: {seconds:.0f} s, exit {done.returncode}; {added}; models: {said}", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
