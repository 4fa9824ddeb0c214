"""Documents: readers, cleaning, redaction and the checks that yield evidence."""
