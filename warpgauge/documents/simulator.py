"""Make labelled reports for a rehearsal: what people write about GPU software, some of it about its documentation.

Nobody wrote them: they teach nothing about real documents, and belong in a store of a rehearsal only. Each report
is put together from parts: a product area gives the things that are spoken of, a fault the way it is told.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from warpgauge.documents.batch import DocumentBatch, document_row, documents_frame, labels_frame
from warpgauge.errors import SettingsError

SOURCE = "simulator"
ANNOTATOR = "rehearsal"
DEFECT_SHARE = 1 / 3
# What is spoken of in each area: an area that training never saw is a change of topic.
AREAS: Mapping[str, tuple[str, ...]] = {
    "runtime": (
        "cudaGraphLaunch",
        "cudaStreamSynchronize",
        "cudaMallocAsync",
        "cudaMemcpyPeerAsync",
        "stream capture",
        "the memory pool of a device",
        "event timing",
        "a pinned host buffer",
        "the occupancy calculator",
        "cooperative groups",
        "a kernel node of a graph",
        "the default stream",
        "peer access over PCIe",
        "managed memory and page faults",
        "the launch queue of a context",
    ),
    "training": (
        "mixed-precision training",
        "the gradient scaler",
        "an attention layer",
        "a checkpoint of optimizer states",
        "the learning-rate schedule",
        "sharded data loading",
        "a tokenizer vocabulary",
        "quantized weights",
        "the evaluation loop",
        "model parallelism across nodes",
        "an embedding table",
        "loss curves of a fine-tuning",
        "batch normalization statistics",
        "a distributed sampler",
        "beam search decoding",
    ),
}
_DEFECTS = (
    ("missing_parameter", "The page on {thing} leaves out a parameter that the declaration has"),
    ("outdated_api", "Documentation of {thing} still describes the old interface"),
    ("broken_example", "The example for {thing} in the guide does not compile"),
    ("broken_link", "A link in the manual section about {thing} leads nowhere"),
    ("incorrect_content", "The reference states the wrong return value for {thing}"),
    ("unclear", "The docs do not say what happens when {thing} fails"),
)
_OTHERS = (
    "{thing} crashes with an illegal address after several hours",
    "Performance of {thing} dropped by half since the last release",
    "Deadlock between two threads that use {thing}",
    "Add a faster path for {thing} on small inputs",
    "Memory is leaked each time {thing} is called in a loop",
    "Build fails in the unit tests of {thing} with the new compiler",
)
_DEFECT_DETAILS = (
    "A reader who follows the text gets an error.",
    "Please correct the description and the table below it.",
    "The paragraph contradicts the release notes.",
    "I spent an afternoon because the manual says otherwise.",
    "The wording should name the version in which this changed.",
)
_OTHER_DETAILS = (
    "The stack trace is attached.",
    "It happens on every machine with two devices.",
    "A profile shows most of the time in synchronization.",
    "The patch moves the allocation out of the loop.",
    "Bisecting leads to the change of last week.",
)
_COMMON_DETAILS = (
    "Seen together with {other}.",
    "It does not depend on {other}.",
    "Version 12.{minor} behaves the same.",
    "We use it in {count} places.",
    "The driver is {driver}.",
)


def simulate_reports(seed: int, count: int, area: str) -> DocumentBatch:
    """Reports about one product area, a third of them about a defect of the documentation, each with its label.

    The same seed, count and area give the same reports.

    Args:
        seed: 0 or more.
        count: Reports, at least 1; each has an id of its own.
        area: One of `AREAS`.

    Raises:
        SettingsError: If there is no such area, or a number is out of range.
    """
    if area not in AREAS or seed < 0 or count < 1:
        raise SettingsError(
            f"simulated reports: seed {seed}, count {count}, area {area!r}; needed: a seed of 0 or more, at least one "
            f"report, and an area of {', '.join(AREAS)}"
        )
    random = np.random.default_rng([seed, list(AREAS).index(area)])
    documents, labels = [], []
    for number in range(count):
        thing, other = random.choice(AREAS[area], 2, replace=False)
        is_defect = bool(random.random() < DEFECT_SHARE)
        kind, title = _DEFECTS[random.integers(len(_DEFECTS))] if is_defect else ("", random.choice(_OTHERS))
        own = _DEFECT_DETAILS if is_defect else _OTHER_DETAILS
        parts = [*random.choice(own, 2, replace=False), *random.choice(_COMMON_DETAILS, 2, replace=False)]
        random.shuffle(parts)
        words = {
            "thing": thing,
            "other": other,
            "minor": int(random.integers(10)),
            "count": int(random.integers(2, 90)),
            "driver": f"{random.integers(520, 590)}.{random.integers(10, 99)}",
        }
        row = document_row(
            source=SOURCE,
            source_id=f"{area}-{seed}-{number}",
            family="report",
            title=str(title).format(**words),
            body=" ".join(str(part).format(**words) for part in parts),
            code=None,
        )
        documents.append(row)
        labels.append(
            {
                "document_id": row["document_id"],
                "annotator": ANNOTATOR,
                "labelled_at": None,
                "label_source": "human",
                "is_defect": is_defect,
                "kinds": [kind] if is_defect else [],
                "nature": None,
            }
        )
    return DocumentBatch(documents_frame(documents), labels_frame(labels), counts={"documents": count})
