"""tasks/inspection.py: the limits of a GPU, named or at hand."""

from types import SimpleNamespace
from typing import Any

import pytest

from tasks import inspection
from tasks.inspection import inspect_constraints
from tasks.presentation import as_json, exit_code, render
from warpgauge.errors import SettingsError, SourceUnavailableError


class NVMLError(Exception):
    """Base of the stand-in's errors, as in pynvml."""


class NVMLError_NotSupported(NVMLError):
    """As pynvml names it."""


class NVMLError_LibraryNotFound(NVMLError):
    """As pynvml names it."""


class FakeNvml:
    """A part of pynvml: idle GPUs, whose current link is Gen1 while the maximum is the slot's."""

    NVMLError = NVMLError

    def __init__(self, names: list[str], generation: Any = 3, width: Any = 8) -> None:
        self.names, self.generation, self.width, self.open_count = names, generation, width, 0

    def nvmlInit(self) -> None:
        self.open_count += 1

    def nvmlShutdown(self) -> None:
        self.open_count -= 1

    def nvmlDeviceGetCount(self) -> int:
        return len(self.names)

    def __getattr__(self, name: str) -> Any:
        answers: dict[str, Any] = {
            "nvmlDeviceGetHandleByIndex": lambda index: index,
            "nvmlDeviceGetHandleByUUID": lambda uuid: int(uuid.removeprefix("GPU-")),
            "nvmlDeviceGetUUID": lambda handle: f"GPU-{handle}",
            "nvmlDeviceGetName": lambda handle: self.names[handle],
            "nvmlDeviceGetCurrPcieLinkGeneration": lambda _: 1,
            "nvmlDeviceGetCurrPcieLinkWidth": lambda _: self.width,
            "nvmlDeviceGetMaxPcieLinkGeneration": lambda _: self._answer(self.generation),
            "nvmlDeviceGetMaxPcieLinkWidth": lambda _: self._answer(self.width),
            "nvmlDeviceGetUtilizationRates": lambda _: SimpleNamespace(gpu=0, memory=0),
        }
        if name in answers:
            return answers[name]
        if name.startswith("nvml"):
            return self._unsupported
        raise AttributeError(name)

    @staticmethod
    def _unsupported(*_: Any) -> Any:
        raise NVMLError_NotSupported("not supported")

    def _answer(self, value: Any) -> Any:
        if isinstance(value, Exception):
            raise value
        return value


def values(gpu: dict[str, Any]) -> dict[str, Any]:
    return {one["name"]: one["value"] for one in gpu["constraints"]}


def test_a_named_gpu_is_answered_with_its_figures_and_their_source() -> None:
    (gpu,) = inspect_constraints("NVIDIA A100-SXM4-80GB")["gpus"]
    assert gpu["gpu_uuid"] is None
    assert gpu["facts"]["memory_bandwidth_gb_per_s"] == 2039.0
    assert "white paper" in gpu["facts"]["source"]
    assert values(gpu)["pcie_ceiling_gb_per_s"] == pytest.approx(31.508, abs=0.001)


def test_an_unknown_name_and_an_empty_one_are_refused() -> None:
    for name in ("H100", ""):
        with pytest.raises(SettingsError, match="NVIDIA H100 PCIe"):
            inspect_constraints(name)


def test_the_local_gpu_is_judged_by_the_maximum_of_its_slot_not_by_its_idle_link() -> None:
    library = FakeNvml(["Tesla P100-PCIE-16GB"])
    (gpu,) = inspection._local_constraints(library)
    assert gpu["gpu_uuid"] == "GPU-0"
    assert values(gpu)["pcie_ceiling_gb_per_s"] == pytest.approx(7.877, abs=0.001)
    assert gpu["notes"] == [
        "in this machine the link is at most Gen3 x8, the card's own is Gen3 x16",
    ]
    assert library.open_count == 0


def test_a_local_gpu_without_published_figures_is_shown_with_its_link() -> None:
    known, unknown = inspection._local_constraints(FakeNvml(["Tesla T4", "NVIDIA Future 1"], 3, 16))
    assert values(known)["bandwidth_bound_gb_per_s"] == pytest.approx(0.85 * 320)
    assert values(unknown)["bandwidth_bound_gb_per_s"] is None
    assert values(unknown)["pcie_ceiling_gb_per_s"] == pytest.approx(15.754, abs=0.001)
    assert unknown["notes"] == ["no published figures are kept for NVIDIA Future 1"]


@pytest.mark.parametrize("generation", [NVMLError_NotSupported("not supported"), 9])
def test_a_link_that_nvml_does_not_tell_is_said_to_be_the_cards_own(generation: Any) -> None:
    library = FakeNvml(["Tesla T4"], generation)
    (gpu,) = inspection._local_constraints(library)
    assert values(gpu)["pcie_ceiling_gb_per_s"] == pytest.approx(15.754, abs=0.001)
    assert gpu["notes"][0].startswith("the link of this machine is not known")
    assert library.open_count == 0


def test_a_machine_without_a_gpu_says_what_to_do() -> None:
    library = FakeNvml([])
    with pytest.raises(SourceUnavailableError, match=r"sees no GPU.*or name a GPU"):
        inspection._local_constraints(library)

    def absent() -> None:
        raise NVMLError_LibraryNotFound("libnvidia-ml.so.1")

    library.nvmlInit = absent  # type: ignore[method-assign]
    with pytest.raises(SourceUnavailableError, match=r"no NVIDIA driver.*--gpu-constraints"):
        inspection._local_constraints(library)


def test_constraints_are_shown_with_source_and_notes() -> None:
    result = {"gpus": inspection._local_constraints(FakeNvml(["Tesla T4", "NVIDIA Future 1"], 3, 8))}
    shown = render("doctor", result)
    assert "Tesla T4 (GPU-0)" in shown
    assert "source: NVIDIA Turing white paper" in shown
    assert "note: in this machine the link is at most Gen3 x8" in shown
    assert "bandwidth_bound_gb_per_s" in shown
    assert exit_code(result) == 0
    assert '"l2_bytes": null' in as_json(result)


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["--gpu-constraints", "NVIDIA L4"], 0, "pcie_saturation_gb_per_s"),
        (["--gpu-constraints", "NVIDIA L4", "--json"], 0, '{"gpus": [{"name": "NVIDIA L4"'),
        (["--gpu-constraints", "A100"], 2, "nearest: NVIDIA A100"),
        (["--gpu-constraints", "", "--json"], 2, '"error": "SettingsError"'),
    ],
)
def test_the_command_line_answers(
    project: Any, capfd: pytest.CaptureFixture[str], words: list[str], code: int, said: str
) -> None:
    from flows.__main__ import main

    assert main(["doctor", *words]) == code
    captured = capfd.readouterr()
    assert said in captured.out + captured.err


def test_without_a_name_the_command_line_asks_the_local_gpu(
    project: Any, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from flows.__main__ import main

    monkeypatch.setattr(inspection, "_local_constraints", lambda _: [])
    assert main(["doctor", "--gpu-constraints", "--json"]) == 0
    assert capfd.readouterr().out == '{"gpus": []}\n'
