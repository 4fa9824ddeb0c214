import json
from pathlib import Path

import polars as pl
import pytest

from warpgauge.errors import SourceFileError
from warpgauge.launches.batch import lines_signature
from warpgauge.launches.graph import describe_graph
from warpgauge.tables import LAUNCHES

DATA = Path(__file__).resolve().parents[1] / "data" / "launches"


def describe(nodes, edges=(), **options):
    text = json.dumps({"nodes": nodes, "edges": list(edges)})
    return describe_graph(text, source_name="g.json", **options).row(0, named=True)


def kernels(count):
    return [{"id": index, "type": "kernel"} for index in range(count)]


def chosen(row, expected):
    return {name: row[name] for name in expected}


def test_a_straight_line_of_kernels_is_the_line_that_the_csv_measures():
    row = describe(kernels(4), [[0, 1], [1, 2], [2, 3]])
    expected = {
        "topology": "straight_line",
        "is_straight_line": True,
        "node_count": 4,
        "kernel_count": 4,
        "memcpy_count": 0,
        "edge_count": 3,
        "root_count": 1,
        "leaf_count": 1,
        "depth": 4,
        "graph_width": 1,
        "line_length": 4,
        "line_count": 1,
        "graph_signature": lines_signature(4, 1, 0),
        "first_launch_api_us": None,
        "gpu_name": None,
        "block_count_total": None,
    }
    assert chosen(row, expected) == expected


def test_equal_lines_side_by_side_are_parallel_lines():
    row = describe(kernels(6), [[0, 1], [1, 2], [3, 4], [4, 5]])
    expected = {"topology": "parallel_lines", "line_length": 3, "line_count": 2, "root_count": 2, "depth": 3}
    assert chosen(row, expected) == expected
    assert row["graph_signature"] == lines_signature(3, 2, 0)


def test_equal_lines_behind_one_root_are_pattern_1():
    row = describe(kernels(5), [[0, 1], [1, 2], [0, 3], [3, 4]])
    assert chosen(row, ("topology", "line_length", "line_count", "node_count")) == {
        "topology": "parallel_lines",
        "line_length": 2,
        "line_count": 2,
        "node_count": 5,
    }
    assert row["graph_signature"] == lines_signature(2, 2, 1)


def test_a_diamond_is_general_and_has_the_width_of_its_middle():
    row = describe(kernels(4), [[0, 1], [0, 2], [1, 3], [2, 3]])
    expected = {
        "topology": "general",
        "is_straight_line": False,
        "depth": 3,
        "graph_width": 2,
        "root_count": 1,
        "leaf_count": 1,
        "line_length": None,
    }
    assert chosen(row, expected) == expected


def test_lines_of_unequal_length_are_general():
    assert describe(kernels(3), [[0, 1]])["topology"] == "general"


def test_attributes_are_summed_by_type_and_an_unknown_type_is_another_node():
    nodes = [
        {
            "id": "a",
            "type": "kernel",
            "name": "f",
            "grid": [2, 3],
            "block": [32],
            "registers_per_thread": 40,
            "shared_memory_bytes": 0,
        },
        {
            "id": "b",
            "type": "kernel",
            "name": "f",
            "grid": [10, 1, 1],
            "block": [16, 6, 1],
            "registers_per_thread": 20,
            "shared_memory_bytes": 512,
        },
        {"id": "c", "type": "memcpy", "bytes": 100, "kind": "HtoD"},
        {"id": "d", "type": "memset", "bytes": 7},
        {"id": "e", "type": "quantum"},
    ]
    row = describe(nodes)
    expected = {
        "kernel_count": 2,
        "memcpy_count": 1,
        "memset_count": 1,
        "other_node_count": 1,
        "memcpy_bytes": 100,
        "memcpy_htod_bytes": 100,
        "memcpy_dtoh_bytes": 0,
        "memset_bytes": 7,
        "block_count_total": 16.0,
        "block_count_maximum": 10.0,
        "threads_per_block_mean": 64.0,
        "threads_per_block_maximum": 96.0,
        "registers_per_thread_maximum": 40.0,
        "shared_memory_bytes_maximum": 512.0,
        "distinct_kernel_count": 1,
    }
    assert chosen(row, expected) == expected


def test_the_signature_does_not_depend_on_ids_or_order():
    one = describe(kernels(4), [[0, 1], [0, 2], [1, 3], [2, 3]])
    other = describe(
        [{"id": name, "type": "kernel"} for name in "wxyz"], [["z", "y"], ["x", "w"], ["y", "w"], ["z", "x"]]
    )
    line = describe(kernels(4), [[0, 1], [0, 2], [1, 3]])
    assert one["graph_signature"] == other["graph_signature"] != line["graph_signature"]


def test_the_row_has_the_columns_of_the_launches_table():
    frame = describe_graph(json.dumps({"nodes": kernels(1)}), source_name="g")
    assert frame.schema == LAUNCHES.schema
    assert frame.height == 1


def test_plain_dot_is_read_and_its_child_graph_unfolded():
    row = describe_graph((DATA / "plain.dot").read_text(), source_name="plain.dot").row(0, named=True)
    expected = {
        "node_count": 5,
        "kernel_count": 3,
        "memcpy_count": 1,
        "memset_count": 1,
        "other_node_count": 0,
        "edge_count": 5,
        "root_count": 1,
        "leaf_count": 1,
        "depth": 4,
        "graph_width": 2,
        "topology": "general",
        "memcpy_htod_bytes": 4096,
        "distinct_kernel_count": 2,
        "block_count_total": None,
    }
    assert chosen(row, expected) == expected


def test_verbose_dot_gives_launch_shapes_and_bytes():
    row = describe_graph((DATA / "verbose.dot").read_text(), source_name="v.dot").row(0, named=True)
    expected = {
        "node_count": 4,
        "kernel_count": 2,
        "memcpy_count": 1,
        "other_node_count": 1,
        "topology": "straight_line",
        "block_count_total": 40.0,
        "threads_per_block_mean": 192.0,
        "threads_per_block_maximum": 256.0,
        "shared_memory_bytes_maximum": 1024.0,
        "memcpy_dtoh_bytes": 8192,
        "distinct_kernel_count": 2,
    }
    assert chosen(row, expected) == expected


def test_a_child_graph_named_twice_counts_twice_and_a_kernel_named_like_one_stays_a_kernel():
    text = """digraph dot {
    subgraph cluster_1 { label="graph_1" graph[style="dashed"];
      "a"[shape="rectangle" label="0\\ngraph_2\\n"]; "b"[shape="rectangle" label="1\\ngraph_2\\n"];
      "c"[shape="octagon" label="2\\ngraph_2\\n"]; }
    subgraph cluster_2 { "d"[shape="octagon" label="0\\n_Z1fv\\n"]; "e"[shape="octagon" label="1\\n_Z1gv\\n"]; }
    }"""
    row = describe_graph(text, source_name="x.dot").row(0, named=True)
    assert (row["node_count"], row["kernel_count"]) == (5, 5)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "found no text"),
        ("hello", "found text that starts with 'hello'"),
        ("{", "not a JSON graph"),
        ("[" * 100_000, "not a JSON graph"),
        ("[]", "without a list `nodes`"),
        ('{"nodes": []}', "without nodes"),
        ('{"nodes": [{"id": 1}], "edges": 5}', "`edges` is no list"),
        ('{"nodes": [{"type": "kernel"}]}', "node 0 has no `id`"),
        ('{"nodes": [5]}', "node 0 has no `id`"),
        ('{"nodes": [{"id": 1}, {"id": "1"}]}', "node id '1' occurs twice"),
        ('{"nodes": [{"id": 1}], "edges": [[1, 2]]}', "edge 0 names node '2'"),
        ('{"nodes": [{"id": 1}], "edges": [[1]]}', "edge 0 is no pair"),
        ('{"nodes": [{"id": 1}], "edges": [[1, 1]]}', "cycle: 1 -> 1"),
        (
            '{"nodes": [{"id": "a"}, {"id": "b"}, {"id": "c"}], "edges": [["a", "b"], ["b", "c"], ["c", "b"]]}',
            "cycle: ",
        ),
        ('{"nodes": [{"id": 1, "grid": [0, 1, 1]}]}', "node '1': grid"),
        ('{"nodes": [{"id": 1, "bytes": -1}]}', "node '1': bytes"),
        ('{"nodes": [{"id": 1, "bytes": 1.5}]}', "node '1': bytes"),
        ("digraph dot { }", "without nodes"),
        ("digraph dot { a; ", "breaks off"),
        ("digraph dot { a; a; }", "node 'a' occurs twice"),
        ('digraph dot { "a" -> "b"; }', "names node 'a', which no statement declares"),
        ("digraph dot { a; b; a -> b; b -> a; }", "cycle: "),
        ("digraph dot { a [label=<b>]; }", "as DOT"),
        ('digraph dot { "a }', "as DOT"),
        ("digraph dot { a -> }", "an arrow without a node"),
        (
            "digraph { subgraph cluster_1 { a; } subgraph cluster_2 { b; } }",
            "found 2 graphs (graph_1, graph_2)",
        ),
        (
            'digraph { subgraph cluster_1 { a [label="graph_2"]; } subgraph cluster_2 { b [label="graph_1"]; } }',
            "graphs that hold each other",
        ),
    ],
)
def test_what_is_no_single_acyclic_graph_is_refused_in_words(text, words):
    with pytest.raises(SourceFileError) as caught:
        describe_graph(text, source_name="input")
    assert words in str(caught.value)
    assert str(caught.value).startswith("input: ")


def test_a_cycle_is_named_by_its_own_nodes_in_order():
    nodes = [{"id": name} for name in "abcd"]
    with pytest.raises(
        SourceFileError, match=r"cycle: (b -> c -> d -> b|c -> d -> b -> c|d -> b -> c -> d)$"
    ):
        describe(nodes, [["a", "b"], ["b", "c"], ["c", "d"], ["d", "b"]])


def test_child_graphs_that_would_unfold_without_end_are_refused():
    doubling = "".join(
        f'subgraph cluster_{level} {{ a{level} [label="graph_{level + 1}"]; b{level} [label="graph_{level + 1}"]; }}\n'
        for level in range(1, 60)
    )
    with pytest.raises(SourceFileError, match="more than 1,000,000 nodes"):
        describe_graph(f"digraph {{ {doubling} subgraph cluster_60 {{ z; }} }}", source_name="bomb.dot")


def test_a_graph_of_twenty_thousand_nodes_is_described():
    count = 20_000
    frame = describe_graph(
        json.dumps({"nodes": kernels(count), "edges": [[i, i + 1] for i in range(count - 1)]}),
        source_name="g",
    )
    assert frame.select(pl.col("depth"), pl.col("edge_count")).row(0) == (count, count - 1)
