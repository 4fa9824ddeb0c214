"""The documentation-quality model: what it answers, why, and how it is kept in files.

A linear head on named columns, so each answer can say which columns moved it. Arrays are kept as
safetensors and everything else as JSON, both hashed; nothing in a model file can run code.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import polars as pl
from numpy.typing import NDArray

from warpgauge.docquality.calibration import Calibration, Floats, GroupCalibration
from warpgauge.docquality.features import FeatureSpace
from warpgauge.docquality.head import LinearHead
from warpgauge.errors import ModelFileError, SchemaError
from warpgauge.tables import KINDS, NATURES

TENSOR_FILE = "model.safetensors"
DESCRIPTION_FILE = "model.json"
FORMAT = "warpgauge-docquality-1"

THRESHOLD = 0.5
REASON_COUNT = 5

# Kinds that are wrong for a version, not in themselves, where no label taught the difference.
VERSION_KINDS = frozenset({"outdated_api"})

# Contributions to the log-odds below this change a probability by less than half a percentage point.
_REASON_MINIMUM = 0.02

SCORE_SCHEMA = pl.Schema(
    {
        "document_id": pl.String(),
        "defect_probability": pl.Float64(),
        "kinds": pl.List(pl.String()),
        "nature": pl.String(),
        "evidence": pl.List(pl.String()),
        "reasons": pl.List(pl.Struct({"feature": pl.String(), "contribution": pl.Float64()})),
        "never_seen": pl.List(pl.String()),
    }
)


@dataclass(frozen=True)
class BinaryHead:
    """A head of yes or no with its calibration, for one kind or for the nature."""

    head: LinearHead
    calibration: GroupCalibration

    def probability(self, matrix: Floats, groups: NDArray[np.str_]) -> Floats:
        """Calibrated probability of yes, shape (rows,)."""
        return self.calibration.probabilities(self.head.logits(matrix), groups)[:, 1]


@dataclass(frozen=True)
class DocQualityModel:
    """Answers whether a document is, or reports, a documentation defect.

    Attributes:
        space: The columns it sees.
        defect: The head for "is defective", calibrated by family.
        kinds: A head for each kind with labels enough.
        version_nature: Probability that a defect is one of version, not of concept; None without labels.
        encoder_id: Whose embeddings it understands.
        label_provenance: `human`, or `proxy` where the held-out labels came from history.
        check_kinds: Which kind of defect a check is evidence of.
    """

    space: FeatureSpace
    defect: BinaryHead
    kinds: Mapping[str, BinaryHead]
    version_nature: BinaryHead | None
    encoder_id: str
    label_provenance: str
    check_kinds: Mapping[str, str] = field(default_factory=dict)

    def score(
        self,
        documents: pl.DataFrame,
        embeddings: NDArray[np.floating[Any]],
        check_features: pl.DataFrame,
        *,
        encoder_id: str,
    ) -> pl.DataFrame:
        """One answer a document, columns of SCORE_SCHEMA, in the documents' order.

        - defect_probability: 0 to 1, calibrated.
        - kinds: what a check found, and what a kind's head answers with 0.5 or more; in the order of KINDS.
        - nature: concept or version; null where no defect is likely and no check found one.
        - evidence: checks that found something, as `check=value`.
        - reasons: up to five columns by weight (the text as one), contribution in log-odds, positive towards
          a defect.
        - never_seen: what training did not know of the document; the answer leans on the rest.

        Args:
            documents: Rows of the documents table; none gives an empty frame.
            embeddings: Vectors of the documents, rows in the same order.
            check_features: document_id and the checks of training; others are ignored.
            encoder_id: Of the encoder that made the embeddings.

        Raises:
            SchemaError: If the embeddings come from another encoder or the frames do not fit.
        """
        if encoder_id != self.encoder_id:
            raise SchemaError(
                f"embeddings come from encoder {encoder_id[:12]}, the model was trained on {self.encoder_id[:12]}; "
                f"encode the documents with the model's encoder and settings"
            )
        features = self.space.transform(documents, embeddings, check_features)
        family = documents["family"].cast(pl.String).to_numpy().astype(str)
        probability = self.defect.probability(features.matrix, family)
        evidence, kinds = self._evidence(features.checks, documents.height)
        for kind, head in self.kinds.items():
            for row in np.flatnonzero(head.probability(features.matrix, family) >= THRESHOLD):
                kinds[row].add(kind)
        natures = self._natures(features.matrix, family, probability >= THRESHOLD, evidence, kinds)
        return pl.DataFrame(
            {
                "document_id": documents["document_id"],
                "defect_probability": probability,
                "kinds": [[kind for kind in KINDS if kind in found] for found in kinds],
                "nature": natures,
                "evidence": evidence,
                "reasons": self._reasons(features.matrix, family),
                "never_seen": features.never_seen,
            },
            schema=SCORE_SCHEMA,
        )

    def to_files(self) -> dict[str, bytes]:
        """The model as two files, name to content: arrays, and a description that hashes both."""
        from safetensors.numpy import save

        heads = {"defect": self.defect, **{f"kind/{name}": head for name, head in self.kinds.items()}}
        if self.version_nature is not None:
            heads["nature/version"] = self.version_nature
        tensors = {f"{name}/weights": np.ascontiguousarray(head.head.weights) for name, head in heads.items()}
        tensors |= {f"{name}/intercepts": head.head.intercepts for name, head in heads.items()}
        arrays = save(tensors)
        content = {
            "format": FORMAT,
            "encoder_id": self.encoder_id,
            "label_provenance": self.label_provenance,
            "check_kinds": dict(self.check_kinds),
            "space": dataclasses.asdict(self.space),
            "feature_names": list(self.space.names),
            "calibrations": {name: _calibration_to_json(head.calibration) for name, head in heads.items()},
            "tensors_sha256": hashlib.sha256(arrays).hexdigest(),
        }
        text = json.dumps(
            {"content": content, "content_sha256": _content_sha256(content)}, indent=1, sort_keys=True
        )
        return {TENSOR_FILE: arrays, DESCRIPTION_FILE: text.encode()}

    @classmethod
    def from_files(cls, files: Mapping[str, bytes]) -> DocQualityModel:
        """The model of two files, after both hashes, all shapes and all numbers were checked.

        Raises:
            ModelFileError: If a file is missing, cut, altered, of another format or does not fit the other.
        """
        from safetensors import SafetensorError
        from safetensors.numpy import load

        if missing := [name for name in (TENSOR_FILE, DESCRIPTION_FILE) if name not in files]:
            raise ModelFileError(f"the model has no file {', '.join(missing)}; download it again, whole")
        content = _verified_content(files)
        try:
            tensors = load(files[TENSOR_FILE])
            space = _space_from_json(content["space"])
            heads = {
                name: BinaryHead(_head(tensors, name, len(space.names)), _calibration_from_json(value))
                for name, value in content["calibrations"].items()
            }
            if list(space.names) != content["feature_names"]:
                raise ModelFileError(
                    f"{DESCRIPTION_FILE}: its columns are not the ones this version builds; train again"
                )
            return cls(
                space=space,
                defect=heads["defect"],
                kinds={
                    name.removeprefix("kind/"): head
                    for name, head in heads.items()
                    if name.startswith("kind/")
                },
                version_nature=heads.get("nature/version"),
                encoder_id=content["encoder_id"],
                label_provenance=content["label_provenance"],
                check_kinds=content["check_kinds"],
            )
        except (KeyError, TypeError, ValueError, AttributeError, SafetensorError) as error:
            raise ModelFileError(
                f"the model's files do not fit each other ({type(error).__name__}: {error}); train or download again"
            ) from error

    def _evidence(self, checks: Mapping[str, Floats], count: int) -> tuple[list[list[str]], list[set[str]]]:
        evidence: list[list[str]] = [[] for _ in range(count)]
        kinds: list[set[str]] = [set() for _ in range(count)]
        for name, kind in self.check_kinds.items():
            if name not in checks:
                continue
            for row in np.flatnonzero(np.nan_to_num(checks[name], nan=0.0) > 0):
                evidence[row].append(f"{name}={checks[name][row]:g}")
                kinds[row].add(kind)
        return evidence, kinds

    def _natures(
        self,
        matrix: Floats,
        family: NDArray[np.str_],
        is_defect: NDArray[np.bool_],
        evidence: list[list[str]],
        kinds: list[set[str]],
    ) -> list[str | None]:
        """By the nature's head where labels taught one, else by what the checks found."""
        concept, version = NATURES
        if self.version_nature is not None:
            of_version = self.version_nature.probability(matrix, family) >= THRESHOLD
            return [
                (version if at_version else concept) if at_defect or found else None
                for at_version, at_defect, found in zip(of_version, is_defect, evidence, strict=True)
            ]
        return [
            (version if VERSION_KINDS & own else concept) if found else None
            for own, found in zip(kinds, evidence, strict=True)
        ]

    def _reasons(self, matrix: Floats, family: NDArray[np.str_]) -> list[list[dict[str, Any]]]:
        """The largest contributions to each answer's log-odds; text columns are summed, they mean nothing alone."""
        weights = self.defect.head.weights[1] - self.defect.head.weights[0]
        text_count = len(self.space.families) * self.space.dimensions
        text = matrix[:, :text_count] @ weights[:text_count]
        parts = np.concatenate([text[:, None], matrix[:, text_count:] * weights[text_count:]], axis=1)
        names = ("text", *self.space.names[text_count:])
        calibration = self.defect.calibration
        slopes = {name: own.temperature for name, own in calibration.by_group.items()}
        parts /= np.array([slopes.get(str(name), calibration.overall.temperature) for name in family])[
            :, None
        ]
        order = np.argsort(-np.abs(parts), axis=1)[:, :REASON_COUNT]
        return [
            [
                {"feature": names[at], "contribution": float(parts[row, at])}
                for at in columns
                if abs(parts[row, at]) >= _REASON_MINIMUM
            ]
            for row, columns in enumerate(order)
        ]


def _verified_content(files: Mapping[str, bytes]) -> dict[str, Any]:
    try:
        outer = json.loads(files[DESCRIPTION_FILE])
        content: dict[str, Any] = outer["content"]
        claimed = outer["content_sha256"]
        is_known = content["format"] == FORMAT
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ModelFileError(
            f"{DESCRIPTION_FILE}: not a whole model description ({type(error).__name__}: {error}); "
            f"download it again"
        ) from error
    if not is_known:
        raise ModelFileError(
            f"{DESCRIPTION_FILE}: format {content['format']!r}, this version reads {FORMAT!r}; train again"
        )
    if claimed != _content_sha256(content):
        raise ModelFileError(f"{DESCRIPTION_FILE}: altered after it was written; download it again")
    found = hashlib.sha256(files[TENSOR_FILE]).hexdigest()
    if found != content.get("tensors_sha256"):
        raise ModelFileError(
            f"{TENSOR_FILE}: SHA-256 is {found[:12]}, {DESCRIPTION_FILE} says "
            f"{str(content.get('tensors_sha256'))[:12]}: cut or altered; download both again"
        )
    return content


def _content_sha256(content: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _head(tensors: Mapping[str, NDArray[Any]], name: str, column_count: int) -> LinearHead:
    weights, intercepts = tensors[f"{name}/weights"], tensors[f"{name}/intercepts"]
    if weights.shape != (2, column_count) or intercepts.shape != (2,):
        raise ModelFileError(
            f"{TENSOR_FILE}: {name} has weights {weights.shape}, needs (2, {column_count}); download it again"
        )
    if not (np.isfinite(weights).all() and np.isfinite(intercepts).all()):
        raise ModelFileError(f"{TENSOR_FILE}: {name} holds a number that is not finite; train again")
    return LinearHead(weights.astype(np.float64), intercepts.astype(np.float64))


def _space_from_json(value: Mapping[str, Any]) -> FeatureSpace:
    fields: dict[str, Any] = {}
    for item in dataclasses.fields(FeatureSpace):
        raw = value[item.name]
        if item.name in ("wording_means", "wording_scales"):
            fields[item.name] = {name: tuple(numbers) for name, numbers in raw.items()}
        else:
            fields[item.name] = raw if item.name in ("dimensions", "text_scales") else tuple(raw)
    return FeatureSpace(**fields)


def _calibration_to_json(calibration: GroupCalibration) -> dict[str, Any]:
    return {
        "overall": dataclasses.asdict(calibration.overall),
        "by_group": {name: dataclasses.asdict(own) for name, own in calibration.by_group.items()},
    }


def _calibration_from_json(value: Mapping[str, Any]) -> GroupCalibration:
    return GroupCalibration(
        overall=_one_calibration(value["overall"]),
        by_group={name: _one_calibration(own) for name, own in value["by_group"].items()},
    )


def _one_calibration(value: Mapping[str, Any]) -> Calibration:
    temperature, bias = float(value["temperature"]), tuple(float(number) for number in value["bias"])
    if not (temperature > 0 and np.isfinite([temperature, *bias]).all() and len(bias) == 2):
        raise ModelFileError(f"{DESCRIPTION_FILE}: calibration {dict(value)} is unusable; train again")
    return Calibration(temperature, bias)
