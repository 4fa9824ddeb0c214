import io

import pytest

from warpgauge.docquality.plots import (
    plot_calibration,
    plot_precision_recall,
    plot_rounds,
    plot_score_histogram,
)
from warpgauge.docquality.training import CLASS_NAMES, train_docquality


@pytest.fixture(scope="module")
def trained(make):
    corpus = make.corpus(report_count=100, page_count=60)
    return train_docquality(
        corpus.documents, corpus.labels[:120], corpus.checks, corpus.embeddings, "e" * 64, rounds=1
    )


def drawn(figure):
    """The size of the picture as PNG, so that drawing it is tried too."""
    file = io.BytesIO()
    figure.savefig(file, format="png")
    return len(file.getvalue())


@pytest.mark.parametrize("plot", [plot_calibration, plot_precision_recall])
def test_curves_have_one_line_a_family_and_name_its_rows(trained, plot):
    figure = plot(trained.heldout)
    labels = [text.get_text() for text in figure.axes[0].get_legend().get_texts()]
    for family in set(trained.heldout["family"]):
        count = (trained.heldout["family"] == family).sum()
        assert f"{family} ({count})" in labels
    assert drawn(figure) > 1000


def test_the_histogram_counts_every_held_out_document(trained):
    figure = plot_score_histogram(trained.heldout)
    total = sum(bar.get_height() for bar in figure.axes[0].patches)
    assert total == trained.heldout.height
    assert drawn(figure) > 1000


def test_the_rounds_table_has_a_line_a_round_and_the_conclusion(trained):
    rounds = trained.self_training.rounds
    figure = plot_rounds(rounds, CLASS_NAMES, trained.self_training.conclusion)
    cells = figure.axes[0].tables[0].get_celld()
    assert {row for row, _ in cells} == set(range(len(rounds) + 1))
    assert trained.self_training.conclusion in [text.get_text() for text in figure.axes[0].texts]
    assert drawn(figure) > 1000


def test_no_rounds_are_drawn_as_the_sentence_alone():
    figure = plot_rounds([], CLASS_NAMES, "no unlabelled documents")
    assert not figure.axes[0].tables
    assert drawn(figure) > 1000
