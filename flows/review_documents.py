"""The human queue out to where people answer, or their answers back into the labels."""

from typing import Any

from prefect import flow, task

from tasks import flow_runs, review, validation

export_queue = task(name="export review queue")(review.export_queue)
import_labels = task(name="import labels")(review.import_labels)
validate_tables = task(name="validate tables")(validation.validate_tables)


@flow(name="review")
def review_documents(
    export_path: str | None = None, limit: int | None = None, answers: list[str] | None = None
) -> dict[str, Any]:
    """Export the waiting documents, or import answers; what people answered arms the monitor's signals again.

    Args:
        export_path: File to write; `.csv` for people without Label Studio.
        limit: Most documents to export; None is all.
        answers: Files to import.
    """
    flow_runs.sign()
    if answers:
        imported = import_labels(answers)
        validate_tables(["labels"])
        return imported
    return export_queue(export_path or "review.json", limit)
