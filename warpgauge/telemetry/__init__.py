"""Telemetry: GPU readings from NVML and from CSV logs."""
