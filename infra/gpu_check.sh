#!/usr/bin/env bash
# On a machine with a GPU: do the kernels answer what their specification says, does live telemetry reach the
# tables, and can the monitor measure it? Writes to a store of its own and leaves the project's tables alone.
# Exit 0 checked, 3 no GPU here, anything else: something is wrong, and the last lines say what.
set -euo pipefail
cd "$(dirname "$0")/.."

if ! command -v nvidia-smi >/dev/null || ! nvidia-smi --list-gpus; then
  echo "gpu_check: no GPU answers here (nvidia-smi is missing or fails), so nothing was checked" >&2
  exit 3
fi

WARPGAUGE=${WARPGAUGE:-.venv/bin/warpgauge}
PYTHON=${PYTHON:-.venv/bin/python}
# The kernels need the driver, Python and NumPy alone: without the project's environment the system's serves.
[ -x "$PYTHON" ] || PYTHON=python3
store=$(mktemp -d)
trap 'rm -rf "$store"' EXIT
export WARPGAUGE_DATA_DIR="$store/data" WARPGAUGE_MLFLOW_URI="sqlite:///$store/mlruns/mlflow.db"

# Kernels that disagree do not keep the rest from being checked.
kernels=0
"$PYTHON" -m infra.kernels.check --library "${CUDA_LIBRARY:-libcuda.so.1}" \
  --report "${KERNEL_REPORT:-kernel_report}" --timing-rows "${TIMING_ROWS:-100000}" || kernels=$?

"$WARPGAUGE" doctor
for _ in $(seq 1 "${SAMPLES:-60}"); do
  "$WARPGAUGE" collect telemetry nvml --json >/dev/null
done
"$WARPGAUGE" collect telemetry nvml
"$WARPGAUGE" validate gpu_samples
"$WARPGAUGE" monitor --once --json >"$store/monitor.json"
python3 - "$store/monitor.json" <<'EOF'
import json
import sys

decisions = json.load(open(sys.argv[1]))["decisions"]
utilization = [row for row in decisions if row["signal"] == "utilization_p95"]
for row in utilization:
    print(f"{row['subject']}: {row['status']}, p95 {row['value']} %, {row['sample_count']} samples; {row['reason']}")
if not any(row["status"] == "measured" for row in utilization):
    sys.exit("gpu_check: the monitor could not measure utilization on this machine")
EOF

if [ "$kernels" -ne 0 ]; then
  echo "gpu_check: telemetry is well, the kernels are not (see above)" >&2
  exit "$kernels"
fi
