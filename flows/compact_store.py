"""Forget what is old and that no registered model version needs: copies first, then rows and versions, then runs."""

from typing import Any

from prefect import flow, task

from tasks import compaction, flow_runs, old_runs

shrink = task(name="shrink copies")(compaction.shrink_copies)
list_needs = task(name="list what versions need")(compaction.list_needs)
compact_tables = task(name="compact tables")(compaction.compact_tables)
compact_runs = task(name="compact runs")(old_runs.compact_runs)


@flow(name="compact")
def compact_store(dry_run: bool = False) -> dict[str, Any]:
    """Bound the size of tables, runs, caches and reports; keep all that a registered model version needs.

    Args:
        dry_run: Change nothing, only say what would go.
    """
    flow_runs.sign()
    copies = shrink(dry_run)
    with compaction.alone(dry_run):
        needs = list_needs()
        tables = compact_tables(needs, dry_run)
        runs = compact_runs(needs, dry_run)
    return compaction.summarize(dry_run, copies, tables, runs)
