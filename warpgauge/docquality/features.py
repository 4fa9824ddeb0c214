"""What does the model see of a document? Text, wording, check evidence, family, source and version, by name.

Text columns exist once a family: in a report the words say whether the documentation is at fault, in a page
they are the documentation, so one weight for both would be wrong for one of them. Check columns are shared.
Columns are found by name, never by place, and what training did not see is named, not guessed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from warpgauge.docquality.encoder import document_texts
from warpgauge.errors import NoDataError, SchemaError
from warpgauge.tables import KINDS

Floats = NDArray[np.float64]

# Words that speak about documentation. Their count alone separates the documentation-only pull requests of
# one public repository from code fixes with AUC 0.88 (0.83 without the title).
DOCUMENTATION_WORDS = re.compile(
    r"\b(?:docs?|documentation|document(?:s|ed|ing)?|docstrings?|readme|typos?|doxygen|sphinx|guides?"
    r"|tutorials?|examples?|contributing|markdown)\b",
    re.IGNORECASE,
)
WORDING = ("documentation_words", "documentation_word_share", "words")

# Values that fewer documents have share the indicator `other`, which an unseen value gets too.
INDICATOR_MINIMUM_ROWS = 10

# Standardised values are cut here, so that one absurd count cannot decide alone.
_CLIP = 8.0

# A wording search reads this much of a text: enough for any real one, bounded for a hostile one.
_WORDING_CHARACTERS = 100_000

DOCUMENT_COLUMNS = ("document_id", "source", "source_id", "family", "title", "body", "product_version")
OTHER = "<other>"


@dataclass(frozen=True)
class Features:
    """Features of documents.

    Attributes:
        matrix: Shape (documents, columns of the space).
        never_seen: For each document what training did not know of it: "source X", "version Y", "family Z",
            "no answer of check C".
        checks: The check columns as given, by name, NaN where a check gave no answer; shape (documents,).
    """

    matrix: Floats
    never_seen: list[list[str]]
    checks: Mapping[str, Floats]


@dataclass(frozen=True)
class FeatureSpace:
    """The columns of the matrix and all that is needed to fill them for new documents.

    Attributes:
        dimensions: Length of a text embedding.
        families, sources, versions: Values seen in training.
        source_indicators, version_indicators: Those with a column of their own.
        checks: Check columns, in the matrix's order.
        check_means, check_scales: Of sign(x) log(1 + |x|) in training, for standardisation.
        checks_with_gaps: Checks that had nulls in training; "no answer" is a column for them.
        wording_means, wording_scales: The same for each family's wording, in the order of WORDING.
        text_scales: How loud each family's text columns are, 0 for silent; 1 gives them unit spread.
    """

    dimensions: int
    families: tuple[str, ...]
    sources: tuple[str, ...]
    versions: tuple[str, ...]
    source_indicators: tuple[str, ...]
    version_indicators: tuple[str, ...]
    checks: tuple[str, ...]
    check_means: tuple[float, ...]
    check_scales: tuple[float, ...]
    checks_with_gaps: tuple[str, ...]
    wording_means: Mapping[str, tuple[float, ...]]
    wording_scales: Mapping[str, tuple[float, ...]]
    text_scales: Mapping[str, float]

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the matrix's columns, in order."""
        text = [f"text[{family}]/{at}" for family in self.families for at in range(self.dimensions)]
        wording = [f"{name}[{family}]" for family in self.families for name in WORDING]
        # The text blocks come first, so that a family's place follows from its rank alone.
        return (
            *text,
            *wording,
            *self.checks,
            *(f"{check}=null" for check in self.checks_with_gaps),
            *(f"family={family}" for family in self.families),
            *(f"source={source}" for source in (*self.source_indicators, OTHER)),
            *(f"version={version}" for version in (*self.version_indicators, OTHER)),
        )

    def text_columns(self, family: str) -> slice:
        """Where the family's text columns stand in the matrix."""
        start = self.families.index(family) * self.dimensions
        return slice(start, start + self.dimensions)

    @property
    def version_columns(self) -> slice:
        """Where the version's indicators stand in the matrix: at its end."""
        return slice(len(self.names) - len(self.version_indicators) - 1, len(self.names))

    def transform(
        self, documents: pl.DataFrame, embeddings: NDArray[np.floating[Any]], check_features: pl.DataFrame
    ) -> Features:
        """The matrix of these documents.

        Args:
            documents: Rows of the documents table.
            embeddings: Vectors of the documents, rows in the same order.
            check_features: document_id and at least this space's checks; a document without a row, and a
                null, is a check without an answer.

        Raises:
            SchemaError: If a frame lacks a column, the rows do not fit each other, or a number is not finite.
        """
        check_inputs(documents, embeddings)
        if embeddings.shape[1] != self.dimensions:
            raise SchemaError(
                f"embeddings have {embeddings.shape[1]} dimensions, the model was trained on {self.dimensions}; "
                f"encode the documents with the model's encoder"
            )
        checks = aligned_checks(documents, check_features, self.checks)
        count = documents.height
        family = documents["family"].to_numpy()
        source = documents["source"].to_numpy()
        version = documents["product_version"].cast(pl.String).fill_null("").to_numpy()
        wording = wording_features(documents)

        blocks: list[Floats] = []
        # sqrt(dimensions) gives the components of a unit vector a spread near 1, like all other columns.
        text = embeddings.astype(np.float64) * math.sqrt(self.dimensions)
        blocks.extend(
            np.where((family == name)[:, None], text * self.text_scales[name], 0.0) for name in self.families
        )
        for name in self.families:
            means, scales = np.asarray(self.wording_means[name]), np.asarray(self.wording_scales[name])
            scaled = np.clip((wording - means) / scales, -_CLIP, _CLIP)
            blocks.append(np.where((family == name)[:, None], scaled, 0.0))
        for at, name in enumerate(self.checks):
            scaled_check = (signed_log(checks[name]) - self.check_means[at]) / self.check_scales[at]
            # No answer stands at the mean; where training knew such gaps, a column of its own says so.
            blocks.append(np.nan_to_num(np.clip(scaled_check, -_CLIP, _CLIP), nan=0.0)[:, None])
        blocks.extend(np.isnan(checks[name]).astype(np.float64)[:, None] for name in self.checks_with_gaps)
        blocks.extend((family == name).astype(np.float64)[:, None] for name in self.families)
        blocks.append(_indicators(source, self.source_indicators, np.ones(count, dtype=bool)))
        blocks.append(_indicators(version, self.version_indicators, version != ""))
        matrix = np.concatenate(blocks, axis=1) if count else np.zeros((0, len(self.names)))
        return Features(matrix, self._never_seen(family, source, version, checks), checks)

    def _never_seen(
        self,
        family: NDArray[Any],
        source: NDArray[Any],
        version: NDArray[Any],
        checks: Mapping[str, Floats],
    ) -> list[list[str]]:
        answer: list[list[str]] = []
        families, sources, versions = set(self.families), set(self.sources), set(self.versions)
        always_answered = [name for name in self.checks if name not in self.checks_with_gaps]
        for at in range(len(family)):
            found = []
            if family[at] not in families:
                found.append(f"family {family[at]}")
            if source[at] not in sources:
                found.append(f"source {source[at]}")
            if version[at] and version[at] not in versions:
                found.append(f"version {version[at]}")
            found.extend(
                f"no answer of check {name}" for name in always_answered if np.isnan(checks[name][at])
            )
            answer.append(found)
        return answer


def fit_feature_space(
    documents: pl.DataFrame, embeddings: NDArray[np.floating[Any]], check_features: pl.DataFrame
) -> FeatureSpace:
    """The columns that these training documents give.

    Args:
        documents: Rows of the documents table that the model learns from.
        embeddings: Vectors of the documents, rows in the same order.
        check_features: document_id and one numeric column a check or density.

    Raises:
        NoDataError: If there are no documents.
        SchemaError: If the frames do not fit each other.
    """
    check_inputs(documents, embeddings)
    if documents.is_empty():
        raise NoDataError("no documents to take features from; run warpgauge collect documents first")
    names = tuple(name for name in check_features.columns if name != "document_id")
    checks = aligned_checks(documents, check_features, names)
    # A check that never answered here cannot be learned from.
    names = tuple(name for name in names if not np.isnan(checks[name]).all())
    logs = [signed_log(checks[name]) for name in names]
    wording = wording_features(documents)
    families = tuple(sorted(documents["family"].unique()))
    rows = {name: (documents["family"] == name).to_numpy() for name in families}
    return FeatureSpace(
        dimensions=embeddings.shape[1],
        families=families,
        sources=tuple(sorted(documents["source"].unique())),
        versions=tuple(sorted(documents["product_version"].drop_nulls().unique())),
        source_indicators=_frequent(documents["source"]),
        version_indicators=_frequent(documents["product_version"]),
        checks=names,
        check_means=tuple(float(np.nanmean(values)) for values in logs),
        check_scales=tuple(_scale(float(np.nanstd(values))) for values in logs),
        checks_with_gaps=tuple(name for name in names if np.isnan(checks[name]).any()),
        wording_means={name: tuple(wording[at].mean(axis=0).tolist()) for name, at in rows.items()},
        wording_scales={
            name: tuple(_scale(value) for value in wording[at].std(axis=0).tolist())
            for name, at in rows.items()
        },
        text_scales=dict.fromkeys(families, 1.0),
    )


def check_inputs(documents: pl.DataFrame, embeddings: NDArray[np.floating[Any]]) -> None:
    """Documents with all columns and one finite vector each.

    Raises:
        SchemaError: Says which column, row or count is wrong.
    """
    if missing := [name for name in DOCUMENT_COLUMNS if name not in documents.columns]:
        raise SchemaError(f"documents lack column {', '.join(missing)}; give rows of the documents table")
    for name in ("document_id", "source", "source_id", "family"):
        if null_count := documents[name].null_count():
            raise SchemaError(f"documents: {null_count} rows have no {name}; validate the table first")
    if documents["document_id"].n_unique() != documents.height:
        twice = documents["document_id"].filter(documents["document_id"].is_duplicated())[0]
        raise SchemaError(f"documents: document_id {twice} occurs twice; keep one row a document")
    if embeddings.ndim != 2 or embeddings.shape[0] != documents.height:
        raise SchemaError(
            f"embeddings have shape {embeddings.shape}, {documents.height} documents need one row each; "
            f"encode the same frame"
        )
    if not np.isfinite(embeddings).all():
        row = int(np.flatnonzero(~np.isfinite(embeddings).all(axis=1))[0])
        raise SchemaError(
            f"embeddings: row {row} (document {documents['document_id'][row]}) is not finite; encode it again"
        )


def aligned_checks(
    documents: pl.DataFrame, check_features: pl.DataFrame, names: tuple[str, ...]
) -> dict[str, Floats]:
    """Each named check column in the documents' order, NaN where it is null or the document has no row.

    Raises:
        SchemaError: If a column is missing, not numeric or infinite, or a document has two rows.
    """
    if missing := [name for name in ("document_id", *names) if name not in check_features.columns]:
        raise SchemaError(
            f"check features lack column {', '.join(missing)}; the model needs the checks it was trained with"
        )
    schema = check_features.schema
    if wrong := [name for name in names if not (schema[name].is_numeric() or schema[name] == pl.Boolean)]:
        raise SchemaError(f"check features: column {wrong[0]} is {schema[wrong[0]]}, a check gives a number")
    if check_features["document_id"].n_unique() != check_features.height:
        twice = check_features["document_id"].filter(check_features["document_id"].is_duplicated())[0]
        raise SchemaError(f"check features: document_id {twice} occurs twice; give one row a document")
    joined = documents.select("document_id").join(
        check_features.select("document_id", *names), on="document_id", how="left", maintain_order="left"
    )
    answer = {}
    for name in names:
        # Only a null is "no answer"; a NaN that a check computed is a fault of the check.
        values = joined[name].cast(pl.Float64)
        faulty = values.is_nan().fill_null(value=False) | values.is_infinite().fill_null(value=False)
        if faulty.any():
            row = int(faulty.arg_max() or 0)
            raise SchemaError(
                f"check features: {name} of document {joined['document_id'][row]} is {values[row]}; "
                f"a check gives a finite number, or null where it cannot say"
            )
        answer[name] = values.fill_null(float("nan")).to_numpy()
    return answer


def wording_features(documents: pl.DataFrame) -> Floats:
    """Log count of words about documentation, their share of all words, log count of words; (documents, 3)."""
    answer = np.zeros((documents.height, len(WORDING)))
    for at, text in enumerate(document_texts(documents)):
        head = text[:_WORDING_CHARACTERS]
        found = sum(1 for _ in DOCUMENTATION_WORDS.finditer(head))
        words = len(head.split())
        answer[at] = math.log1p(found), found / max(words, 1), math.log1p(words)
    return answer


def keyword_scores(documents: pl.DataFrame) -> Floats:
    """The baseline that a model must beat: how many words about documentation a text has; (documents,)."""
    return np.expm1(wording_features(documents)[:, 0])


def default_check_kinds(names: tuple[str, ...]) -> dict[str, str]:
    """The kind of defect that each check is evidence of: the kind whose name the check's name holds.

    >>> default_check_kinds(("missing_parameter_count", "warp_intrinsic_density"))
    {'missing_parameter_count': 'missing_parameter'}
    """
    return {name: kind for name in names for kind in KINDS if kind in name}


def signed_log(values: Floats) -> Floats:
    """sign(x) log(1 + |x|): counts of any size on one scale, NaN stays NaN."""
    return np.sign(values) * np.log1p(np.abs(values))


def _scale(spread: float) -> float:
    return spread if spread > 1e-9 else 1.0


def _frequent(values: pl.Series) -> tuple[str, ...]:
    counts = values.drop_nulls().value_counts()
    return tuple(sorted(counts.filter(pl.col("count") >= INDICATOR_MINIMUM_ROWS)[values.name]))


def _indicators(values: NDArray[Any], names: tuple[str, ...], is_known: NDArray[np.bool_]) -> Floats:
    """One column a name, and one for every other known value."""
    own = [(values == name) & is_known for name in names]
    other = is_known & ~np.any(own, axis=0) if own else is_known
    return np.stack([*own, other], axis=1).astype(np.float64)
