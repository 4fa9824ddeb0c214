"""Read the DOT text of cudaGraphDebugDotPrint, plain or verbose.

Each CUDA graph is one `subgraph cluster_N`; a node that stands for a child graph carries that graph's name in
its label. A plain label is the node's number and one line; a verbose one is a record of fields. What a label
does not say stays unknown: the form is NVIDIA's own and undocumented, so a new field must not refuse a graph.
"""

from __future__ import annotations

import itertools
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from warpgauge.errors import SourceFileError
from warpgauge.launches.graph_node import (
    DIRECTIONS,
    FORMS,
    KINDS,
    LARGEST_NODE_COUNT,
    LARGEST_WHOLE,
    Graph,
    GraphNode,
    bounded,
    too_large,
)

_LONGEST_LABEL = 10_000  # characters looked at; a kernel's mangled name may have thousands
_LARGEST_EDGE_COUNT = 4_000_000
_DEEPEST = 100
_TOKEN = re.compile(
    r'(?P<blank>(?:\s+|//[^\n]*|/\*.*?\*/)+)|(?P<quoted>"[^"\\]*(?:\\.[^"\\]*)*")|(?P<arrow>->)'
    r"|(?P<word>-?[\w.]+)|(?P<sign>[\[\]{};,=])",
    re.DOTALL,
)
_CLUSTER_NAME = re.compile(r"\bgraph_\d+\b")
_COPY = re.compile(r"\b([HD])\w*to([HD])\w*\b", re.IGNORECASE)
_PLAIN_COPY_BYTES = re.compile(r"to[HD]\w*\s*,\s*(\d+)", re.IGNORECASE)
_EXTENT = re.compile(r"Width \| (\d+).*?Height \| (\d+).*?Depth \| (\d+)", re.DOTALL)
# Names of the other node types as cudaGraphDebugDotPrint heads their labels.
_HEADING = re.compile(
    r"^(KERNEL|MEMCPY|MEMSET|HOST|GRAPH|EMPTY|WAIT_EVENT|EVENT_RECORD|EXT_SEMAS_SIGNAL|EXT_SEMAS_WAIT"
    r"|MEM_ALLOC|MEM_FREE|BATCH_MEM_OP|CONDITIONAL)\b"
)


@dataclass
class _Cluster:
    """One `subgraph` of the DOT text: node statements and edges by name."""

    attributes: dict[str, dict[str, str]] = field(default_factory=dict)
    edges: list[tuple[str, str]] = field(default_factory=list)


def read_dot_graph(text: str, source_name: str) -> Graph:
    """The one graph of a DOT text, its child graphs unfolded; without nodes where the text has none.

    Raises:
        SourceFileError: If the text is no such DOT, holds several graphs, repeats a node, or an edge names a
            node without a statement.
    """
    clusters = {
        name: one for name, one in _clusters(text, source_name).items() if one.attributes or one.edges
    }
    if not clusters:
        return Graph()
    references = {
        name: {node: _reference(attributes, clusters, name) for node, attributes in one.attributes.items()}
        for name, one in clusters.items()
    }
    referred = {child for of_one in references.values() for child in of_one.values() if child}
    roots = [name for name in clusters if name not in referred]
    if len(roots) != 1:
        found = f"{len(roots)} graphs ({', '.join(roots[:5])})" if roots else "graphs that hold each other"
        raise SourceFileError(f"{source_name}: found {found}; print one graph at a time")
    return _unfold(roots[0], clusters, references, source_name)


def _clusters(text: str, source_name: str) -> dict[str, _Cluster]:
    """The text's subgraphs by name (`graph_1` of `cluster_1`); statements outside any are under `graph`."""
    parser = _Parser(list(_tokens(text, source_name)), source_name)
    parser.parse()
    return parser.clusters


class _Parser:
    """Statements of the DOT language, as far as a printed graph uses it."""

    def __init__(self, tokens: list[tuple[str, str, int]], source_name: str) -> None:
        self.tokens = tokens
        self.source_name = source_name
        self.position = 0
        self.clusters: dict[str, _Cluster] = {"graph": _Cluster()}
        self.open_names: list[str] = []

    def parse(self) -> None:
        while self.position < len(self.tokens):
            kind, value, _ = self.tokens[self.position]
            if kind != "quoted" and value in ("strict", ";"):
                self.position += 1
            elif kind == "word" and value in ("digraph", "subgraph"):
                self._open(value)
            elif value == "}" and kind == "sign" and self.open_names:
                self.open_names.pop()
                self.position += 1
            elif self._is_name() and self.open_names:
                self._statement(self.clusters[self.open_names[-1]])
            else:
                raise self._error(f"unexpected {value[:40]!r}")
        if self.open_names:
            raise self._error("the text breaks off before its last closing brace")

    def _open(self, kind: str) -> None:
        self.position += 1
        name = f"unnamed_{self.position}"
        if self._is_name():
            name = self._at()
            self.position += 1
        if self._at() != "{":
            raise self._error(f"{kind} without an opening brace")
        self.position += 1
        if kind == "digraph":
            name = "graph"
        else:
            name = name.replace("cluster_", "graph_", 1)
            if name in self.clusters:
                raise self._error(f"subgraph {name!r} occurs twice")
            self.clusters[name] = _Cluster()
        self.open_names.append(name)

    def _statement(self, cluster: _Cluster) -> None:
        """A node, a chain of edges, a default (`graph [...]`) or an attribute (`label="graph_1"`)."""
        is_default = self.tokens[self.position][:2] in [("word", name) for name in ("graph", "node", "edge")]
        chain = [self._at()]
        self.position += 1
        if self._at() == "=":
            if not self._is_name(1):
                raise self._error(f"attribute {chain[0]!r} without a value")
            self.position += 2
            return
        while self._at() == "->":
            if not self._is_name(1):
                raise self._error("an arrow without a node behind it")
            chain.append(self._at(1))
            self.position += 2
        attributes = self._attributes(chain[0])
        if len(chain) > 1:
            cluster.edges += itertools.pairwise(chain)
        elif not is_default:
            if chain[0] in cluster.attributes:
                raise self._error(f"node {chain[0]!r} occurs twice")
            cluster.attributes[chain[0]] = attributes

    def _attributes(self, owner: str) -> dict[str, str]:
        attributes: dict[str, str] = {}
        while self._at() == "[":
            self.position += 1
            while self._at() != "]":
                if self._at() in (",", ";"):
                    self.position += 1
                elif self._is_name() and self._at(1) == "=" and self._is_name(2):
                    attributes[self._at()] = self._at(2)
                    self.position += 3
                else:
                    raise self._error(f"a bad attribute list of {owner!r}")
            self.position += 1
        return attributes

    def _at(self, offset: int = 0) -> str:
        place = self.position + offset
        return self.tokens[place][1] if place < len(self.tokens) else ""

    def _is_name(self, offset: int = 0) -> bool:
        place = self.position + offset
        return place < len(self.tokens) and self.tokens[place][0] in ("word", "quoted")

    def _error(self, what: str) -> SourceFileError:
        line = self.tokens[min(self.position, len(self.tokens) - 1)][2]
        return SourceFileError(f"{self.source_name}: line {line}: {what}; needed: {FORMS}")


def _tokens(text: str, source_name: str) -> Iterator[tuple[str, str, int]]:
    """Kind, value and line of each token."""
    position, line = 0, 1
    while position < len(text):
        found = _TOKEN.match(text, position)
        if not found:
            raise SourceFileError(
                f"{source_name}: line {line}: cannot read {text[position : position + 40]!r} as DOT; needed: {FORMS}"
            )
        kind = str(found.lastgroup)
        value = found[0]
        if kind != "blank":
            yield kind, value[1:-1] if kind == "quoted" else value, line
        line += value.count("\n")
        position = found.end()


def _content(label: str) -> str:
    """A label without record braces and escapes: plain labels start with the node's number."""
    text = label[:_LONGEST_LABEL].replace("\\n", "\n").replace("\\", "").strip().lstrip("{").strip()
    number, _, rest = text.partition("\n")
    return rest.strip() if number.strip().isdecimal() else text


def _reference(attributes: dict[str, str], clusters: dict[str, _Cluster], own: str) -> str | None:
    """The child graph that a node stands for, if it does; a kernel may be named like a graph."""
    content = _content(attributes.get("label", ""))
    if attributes.get("shape") == "octagon" or content.startswith("KERNEL") or "<<<" in content:
        return None
    return next(
        (name for name in _CLUSTER_NAME.findall(content) if name in clusters and name != own),
        None,
    )


def _unfold(
    root: str,
    clusters: dict[str, _Cluster],
    references: dict[str, dict[str, str | None]],
    source_name: str,
) -> Graph:
    """The graph with each child graph in the place of the node that refers to it."""
    _refuse_endless(root, references, source_name)
    graph = Graph()

    def place(name: str) -> tuple[list[int], list[int]]:
        """Add one copy of a cluster; answers its roots and leaves by position."""
        entries: dict[str, list[int]] = {}
        exits: dict[str, list[int]] = {}
        for node, attributes in clusters[name].attributes.items():
            child = references[name][node]
            if child:
                entries[node], exits[node] = place(child)
            else:
                entries[node] = exits[node] = [len(graph.nodes)]
                graph.nodes.append(_dot_node(node, attributes))
        has_predecessor, has_successor = set(), set()
        for before, after in clusters[name].edges:
            for end in (before, after):
                if end not in entries:
                    raise SourceFileError(
                        f"{source_name}: an edge names node {end!r}, which no statement declares"
                    )
            if len(exits[before]) * len(entries[after]) > LARGEST_NODE_COUNT:
                raise too_large(source_name)
            graph.edges.update((one, other) for one in exits[before] for other in entries[after])
            if len(graph.edges) > _LARGEST_EDGE_COUNT:
                raise too_large(source_name)
            has_predecessor.add(after)
            has_successor.add(before)
        return (
            [one for node, ends in entries.items() if node not in has_predecessor for one in ends],
            [one for node, ends in exits.items() if node not in has_successor for one in ends],
        )

    place(root)
    return graph


def _refuse_endless(root: str, references: dict[str, dict[str, str | None]], source_name: str) -> None:
    """Refuse graphs that hold themselves, and graphs that would unfold to too many nodes, before unfolding."""
    counts: dict[str, int] = {}
    path: list[str] = []

    def count(name: str) -> int:
        if name in path:
            raise SourceFileError(f"{source_name}: {name} holds itself ({' -> '.join([*path, name])})")
        if len(path) > _DEEPEST:
            raise SourceFileError(f"{source_name}: child graphs are nested more than {_DEEPEST} deep")
        if name not in counts:
            path.append(name)
            counts[name] = sum(count(child) if child else 1 for child in references[name].values())
            path.pop()
        return counts[name]

    if count(root) > LARGEST_NODE_COUNT:
        raise too_large(source_name)


def _dot_node(name: str, attributes: dict[str, str]) -> GraphNode:
    content, shape = _content(attributes.get("label", "")), attributes.get("shape")
    heading = _HEADING.match(content)
    kind = heading[1].lower() if heading else "kernel" if shape == "octagon" or "<<<" in content else "other"
    node = GraphNode(name=name, kind=kind if kind in KINDS else "other")
    if node.kind == "kernel":
        before, _, behind = content.partition("<<<")
        words = before.replace("|", " ").split() if behind else content.split("\n")[:1]
        node.kernel = words[-1] if words and not (heading and not behind) else None
        if sizes := _launch_sizes(behind.partition(">>>")[0]):
            node.grid, node.block, node.shared_memory_bytes = sizes
    elif node.kind == "memcpy":
        if way := _COPY.search(content):
            direction = f"{way[1]}to{way[2]}".lower()
            node.direction = direction if direction in DIRECTIONS else None
        extent, plain = _EXTENT.search(content), _PLAIN_COPY_BYTES.search(content)
        if extent:
            node.moved_bytes = bounded(int(extent[1][:19]) * int(extent[2][:19]) * int(extent[3][:19]))
        elif plain:
            node.moved_bytes = bounded(int(plain[1][:30]))
    elif node.kind == "memset":
        node.moved_bytes = _memset_bytes(content)
    return node


def _launch_sizes(text: str) -> tuple[int, int, int] | None:
    """Blocks, threads and bytes of shared memory of `grid,block,shared`, each size a number or a triple."""
    parts = re.findall(r"[({]([\d,\s]+)[)}]|(\d+)", text)
    if len(parts) != 3:
        return None
    sizes = [
        math.prod(int(size[:12]) for size in re.findall(r"\d+", group or single)) for group, single in parts
    ]
    is_possible = sizes[0] > 0 and sizes[1] > 0 and max(sizes) <= LARGEST_WHOLE
    return (sizes[0], sizes[1], sizes[2]) if is_possible else None


def _memset_bytes(content: str) -> int | None:
    """Bytes of a verbose memset label, whose record names its fields and then gives their values."""
    groups = [
        [cell.strip() for cell in group.split("|")] for group in re.findall(r"\{([^{}]*\|[^{}]*)\}", content)
    ]
    for names, values in itertools.pairwise(groups):
        fields = dict(zip(names, values, strict=False))
        sizes = [fields.get(key, "") for key in ("elementSize", "width", "height")]
        if all(size.isdecimal() and len(size) < 20 for size in sizes):
            return bounded(math.prod(int(size) for size in sizes))
    return None
