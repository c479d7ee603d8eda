"""Draw the three experiments in the manner of the paper's figures."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
from numpy.typing import NDArray

from wordloom.inspect import figures
from wordloom.lab.superposition.features import FEATURES, FeatureModel, Features
from wordloom.lab.superposition.geometry import norms, shared
from wordloom.lab.superposition.phases import NAMES, PhaseDiagram, Phases
from wordloom.lab.superposition.polytopes import PLATEAUS, Polytopes

Path = str | os.PathLike[str]
_SMALL = figures.FONT - 2


def draw_features(result: Features, path: Path) -> None:
    """Draw W^T W, b and the norms of each model into a .png, .svg or .pdf file.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    figures.save_figure(lambda: features_figure(result), [], path)


def draw_phases(result: Phases, path: Path) -> None:
    """Draw the trained phase diagrams beside those of the theory into a .png, .svg or .pdf file.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    figures.save_figure(lambda: phases_figure(result), [], path)


def draw_polytopes(result: Polytopes, path: Path) -> None:
    """Draw the dimensions per feature, and each feature's dimensionality, into a .png, .svg or .pdf file.

    Raises as :func:`wordloom.inspect.draw_map`.
    """
    figures.save_figure(lambda: polytopes_figure(result), [], path)


# ---------------------------------------------------------------------------------------------- features


def features_figure(result: Features) -> Any:
    """Return the figure that :func:`draw_features` saves."""
    count = len(result.models)
    figure = figures.new_figure((1.42 * count + 1.1, 5.0))
    panels = figure.subplots(2, count, height_ratios=(1.0, 1.5))
    for i, model in enumerate(result.models):
        image = _gram(panels[0, i], model)
        bars = _norms(panels[1, i], model, first=i == 0)
    for row, drawn, label in ((0, image, "$W^TW$ and $b$"), (1, bars, "shared with other features")):
        bar = figure.colorbar(drawn, ax=panels[row, :], shrink=0.8, pad=0.01, aspect=18)
        bar.set_label(label, fontsize=figures.FONT)
        bar.ax.tick_params(labelsize=_SMALL)
        bar.outline.set_visible(False)
    panels[0, 0].set_ylabel("feature", fontsize=figures.FONT)
    return figure


def _gram(panel: Any, model: FeatureModel) -> Any:
    """Draw W^T W, with b as a column on its right, and return the image."""
    gram = (model.weight.T @ model.weight).numpy()  # [n, n]
    gap = np.full((len(gram), 1), np.nan)
    bias = np.repeat(model.bias.numpy()[:, None], 2, axis=1)
    image = panel.imshow(
        np.concatenate([gram, gap, bias], axis=1), cmap="RdBu", vmin=-1, vmax=1, interpolation="nearest"
    )
    name = "linear model" if model.name == "linear" else f"1 \u2212 S = {model.density:g}"
    panel.set_title(name, fontsize=figures.FONT, color=figures.INK)
    panel.set_xticks([])
    panel.set_yticks([])
    for side in panel.spines.values():
        side.set_color(figures.GRID)
    return image


def _norms(panel: Any, model: FeatureModel, *, first: bool) -> Any:
    """Draw a bar of length |W_i| for each feature, with the colour of its sharing; return the colours."""
    from matplotlib.cm import ScalarMappable
    from matplotlib.colors import Normalize

    colours = ScalarMappable(Normalize(0, 1), "viridis")
    lengths = norms(model.weight).numpy()  # [n]
    places = np.arange(FEATURES)
    panel.barh(places, lengths, height=0.85, color=colours.to_rgba(shared(model.weight).numpy()))
    panel.set_ylim(FEATURES - 0.4, -0.6)
    panel.set_xlim(0, 1.3)
    panel.set_xticks([0, 1])
    panel.set_yticks(range(0, FEATURES, 5) if first else [])
    panel.axvline(1, color=figures.FAINT, linewidth=0.6, linestyle=":", zorder=0)
    panel.set_xlabel("norm of $W_i$", fontsize=figures.FONT - 1)
    panel.tick_params(labelsize=_SMALL, length=2, colors=figures.FAINT)
    if first:
        panel.set_ylabel("feature (falling importance)", fontsize=figures.FONT)
    figures.hide_frame(panel)
    return colours


# ---------------------------------------------------------------------------------------------- phases

# Colours of NAMES: not represented, superposition, dedicated dimension.
_PHASES = ((0.96, 0.96, 0.96), (0.90, 0.62, 0.0), (0.0, 0.447, 0.698))


def phases_figure(result: Phases) -> Any:
    """Return the figure that :func:`draw_phases` saves."""
    from matplotlib.patches import Patch

    rows = len(result.diagrams)
    figure = figures.new_figure((7.4, 3.3 * rows + 0.5))
    panels = figure.subplots(rows, 2, squeeze=False, sharex=True, sharey=True)
    for row, diagram in zip(panels, result.diagrams, strict=True):
        dims = diagram.features - 1
        sizes = f"{diagram.features} features, {dims} dimension{'s' * (dims > 1)}"
        _phase_panel(row[0], diagram, _blend(diagram), f"{sizes}: trained (best of {result.starts})")
        theory = np.array(_PHASES)[diagram.theory.numpy()]  # [R, S, 3]
        _phase_panel(row[1], diagram, theory, f"{sizes}: theory")
        row[0].set_ylabel("relative importance of the last feature", fontsize=figures.FONT)
    for panel in panels[-1]:
        panel.set_xlabel("density 1 \u2212 S (sparser to the right)", fontsize=figures.FONT)
    patches = [
        Patch(facecolor=colour, edgecolor=figures.FAINT, linewidth=0.5, label=f"last feature: {name}")
        for name, colour in zip(NAMES, _PHASES, strict=True)
    ]
    figure.legend(handles=patches, loc="outside lower center", ncols=3, frameon=False, fontsize=figures.FONT)
    return figure


def _blend(diagram: PhaseDiagram) -> NDArray[np.float64]:
    """Return the colours of the trained models [R, S, 3], by norm and by sharing, each limited to 1."""
    norm = np.clip(diagram.norm.numpy(), 0, 1)[..., None]  # [R, S, 1]
    share = np.clip(diagram.share.numpy(), 0, 1)[..., None]
    dropped, superposed, dedicated = map(np.array, _PHASES)
    return (1 - norm) * dropped + norm * (share * superposed + (1 - share) * dedicated)


def _phase_panel(panel: Any, diagram: PhaseDiagram, colours: NDArray[Any], title: str) -> None:
    """Draw one diagram: importances upward, densities from dense to sparse."""
    panel.pcolormesh(diagram.density.numpy(), diagram.importance.numpy(), colours, shading="nearest")
    panel.set_xscale("log")
    panel.set_yscale("log")
    panel.set_xlim(*_edges(diagram.density))  # from dense to sparse
    panel.set_xticks([1, 0.1, 0.01], ["1", "0.1", "0.01"])
    panel.set_yticks([0.1, 1, 10], ["0.1", "1", "10"])
    panel.minorticks_off()
    panel.tick_params(labelsize=_SMALL + 1, colors=figures.INK, length=2)
    panel.set_title(title, fontsize=figures.FONT + 0.5)
    for side in panel.spines.values():
        side.set_color(figures.FAINT)


def _edges(values: Any) -> tuple[float, float]:
    """Return the outer edges of the cells around evenly spaced logarithms ``values``."""
    half = (values[1] / values[0]).sqrt() if len(values) > 1 else 1.1
    return float(values[0] / half), float(values[-1] * half)


# --------------------------------------------------------------------------------------------- polytopes


def polytopes_figure(result: Polytopes) -> Any:
    """Return the figure that :func:`draw_polytopes` saves."""
    figure = figures.new_figure((7.4, 7.4))
    above, below = figure.subplots(2, 1, sharex=True, height_ratios=(1, 2.1))
    across = [1 / model.density for model in result.models]
    line = [model.dims_per_feature for model in result.models]
    for panel, style in ((above, {"marker": "o", "markersize": 3.5}), (below, {"alpha": 0.6})):
        panel.plot(across, line, color=figures.COLOURS[1], linewidth=1.3, zorder=2, **style)
        panel.set_xscale("log")
        panel.tick_params(labelsize=figures.FONT - 1)
        figures.hide_frame(panel)
    for level in (1.0, 0.5):
        above.axhline(level, color=figures.FAINT, linewidth=0.7, linestyle="--", zorder=0)
    above.set_ylabel(r"dimensions per feature  $m\,/\,\|W\|_F^2$", fontsize=figures.FONT)
    above.set_ylim(0, 1.15)
    _scatter(below, result, across)
    top = max(across)
    ticks = [tick for tick in (1, 2, 3, 5, 10, 20, 50, 100) if tick <= top * 1.001]
    below.set_xticks(ticks, [str(tick) for tick in ticks])
    below.minorticks_off()
    below.set_xlabel("1 / (1 \u2212 S), from dense to sparse features", fontsize=figures.FONT)
    return figure


def _scatter(panel: Any, result: Polytopes, across: list[float]) -> None:
    """Draw D_i of every feature, and a line at each plateau."""
    generator = np.random.default_rng(0)
    for place, model in zip(across, result.models, strict=True):
        found = model.dimensionality.numpy()  # [n]
        jitter = np.exp(generator.uniform(-0.025, 0.025, len(found)))
        panel.scatter(
            place * jitter, found, s=5, color=figures.COLOURS[0], alpha=0.35, linewidths=0, zorder=3
        )
    levels: list[tuple[float, str]] = [(float(at), f"{at}  {name}") for at, name in PLATEAUS.items()]
    levels += [(1.0, "1  dedicated dimension"), (0.0, "0  not represented")]
    raised = {2 / 5: 3.0, 3 / 8: -3.0}  # points, because these two names are close
    for level, name in levels:
        panel.axhline(level, color=figures.FAINT, linewidth=0.6, linestyle="--", zorder=0)
        panel.annotate(
            name, (1.0, level), xycoords=("axes fraction", "data"), xytext=(4, raised.get(level, 0.0)),
            textcoords="offset points", va="center", fontsize=figures.FONT - 1, color=figures.INK,
        )  # fmt: skip
    panel.set_ylim(-0.03, 1.05)
    panel.set_ylabel("dimensionality $D_i$ of each feature", fontsize=figures.FONT)
