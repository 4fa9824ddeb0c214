"""One empty figure for every picture of the models, made without pyplot: no global state, no display."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def new_figure(
    title: str, x_label: str, y_label: str, size_inches: tuple[float, float] = (8.0, 5.0)
) -> tuple[Figure, Axes]:
    """A figure with one pair of axes, titled and labelled."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=size_inches, layout="constrained")
    FigureCanvasAgg(figure)
    axes = figure.add_subplot()
    axes.set_title(title)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    return figure, axes
