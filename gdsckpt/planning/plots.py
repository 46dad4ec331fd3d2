"""Pictures of a plan, by matplotlib: costs, one hour, goodput, and sizes."""

from __future__ import annotations

import io
import math
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from gdsckpt.errors import ConfigError
from gdsckpt.planning import hour as hours
from gdsckpt.planning.goodputs import Cadence
from gdsckpt.planning.hour import Hour
from gdsckpt.units import format_bytes, format_duration, format_share, format_usd

if TYPE_CHECKING:
    from collections.abc import Iterator

    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from gdsckpt.planning.costing import Costing
    from gdsckpt.planning.layouts import Placement
    from gdsckpt.planning.plan import Plan
    from gdsckpt.planning.sizing import CheckpointSize

# Colours that stay apart for the colour-blind (Okabe and Ito, "Color Universal Design", 2008).
BLUE, ORANGE, GREEN, RED, PURPLE, SKY, GREY = (
    "#0072B2",
    "#E69F00",
    "#009E73",
    "#D55E00",
    "#CC79A7",
    "#56B4E9",
    "#8A8F98",
)
_SERIES = (BLUE, ORANGE, GREEN, PURPLE, SKY, RED)
_INK = "#20242A"
_TICKS_S = (1.0, 10.0, 60.0, 600.0, 3600.0, 6 * 3600.0, 86400.0, 7 * 86400.0, 30 * 86400.0)

_STYLE: Any = {
    "font.family": "sans-serif",
    "font.sans-serif": ["DejaVu Sans"],
    "font.size": 9.5,
    "text.color": _INK,
    "axes.edgecolor": "#B8BDC4",
    "axes.labelcolor": _INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E6E8EB",
    "xtick.color": _INK,
    "ytick.color": _INK,
    "legend.frameon": False,
    "legend.fontsize": 8.5,
    "svg.hashsalt": "gdsckpt",  # equal plans give equal pictures
    "svg.fonttype": "path",
}

PANELS = ("cost", "hour", "goodput", "size")


def png(plan: Plan) -> bytes:
    """Give all panels as one PNG."""
    return _image(plan, "png")


def svg(plan: Plan) -> bytes:
    """Give all panels as one SVG."""
    return _image(plan, "svg")


def panel_svg(plan: Plan, panel: str) -> str:
    """Give one of ``PANELS`` as an SVG element, to stand in a page of HTML."""
    with _style():
        figure = _figure(7.2, 3.9)
        _DRAW[panel](figure.add_subplot(), plan)
        text = _saved(figure, "svg").decode("utf-8")
    return text[text.index("<svg") :]


def _image(plan: Plan, kind: str) -> bytes:
    with _style():
        figure = _figure(14.0, 8.6)
        grid = figure.subplots(2, 2)
        for axes, panel in zip(grid.flat, PANELS, strict=True):
            _DRAW[panel](axes, plan)
        title = f"{plan.scenario.name}: {plan.scenario.about}".rstrip(": ")
        # A dollar of the user's is no mathematics.
        figure.suptitle(title, x=0.01, ha="left", parse_math=False)
        return _saved(figure, kind)


@contextmanager
def _style() -> Iterator[None]:
    """Set the style of what is drawn meanwhile.

    Raises:
        ConfigError: matplotlib is missing.
    """
    try:
        import matplotlib as mpl
    except ImportError as error:
        raise ConfigError(
            f"--plot needs matplotlib, which cannot be imported ({error}). Install it with: "
            "pip install 'gdsckpt[plan]'; text and --json work without it.",
            field="plot",
        ) from error
    with mpl.rc_context(_STYLE):
        yield


def _figure(width_inches: float, height_inches: float) -> Figure:
    # Not by pyplot, which has a window system and global state.
    from matplotlib.figure import Figure

    return Figure(figsize=(width_inches, height_inches), layout="constrained")


def _saved(figure: Figure, kind: str) -> bytes:
    buffer = io.BytesIO()
    # No date, so that equal plans give equal pictures, and no addresses of vocabularies.
    plain: Any = dict.fromkeys(("Creator", "Date", "Format", "Type"))
    figure.savefig(buffer, format=kind, dpi=130, metadata=plain if kind == "svg" else {})
    return buffer.getvalue()


def draw_goodput(axes: Axes, cadence: Cadence, interval_s: float) -> None:
    """Draw goodput against the interval, with the best one and the one planned."""
    at = [point.interval_s for point in cadence.curve]
    axes.fill_between(
        at,
        [100 * point.goodput.low for point in cadence.curve],
        [100 * point.goodput.high for point in cadence.curve],
        color=BLUE,
        alpha=0.15,
        linewidth=0,
        label="low to high",
    )
    axes.plot(at, [100 * point.goodput.mid for point in cadence.curve], color=BLUE, label="likely")
    best = cadence.best_interval_s
    if best.high > best.low:
        axes.axvspan(best.low, best.high, color=GREEN, alpha=0.12, linewidth=0)
    axes.plot(
        [best.mid],
        [100 * cadence.best_goodput.mid],
        "o",
        color=GREEN,
        clip_on=False,
        zorder=4,
        label=f"best: {format_duration(best.mid)}, {format_share(cadence.best_goodput.mid)}",
    )
    axes.plot(
        [interval_s],
        [100 * cadence.goodput.mid],
        "D",
        color=ORANGE,
        clip_on=False,
        zorder=4,
        label=f"planned: {format_duration(interval_s)}, {format_share(cadence.goodput.mid)}",
    )
    _time_axis(axes, at[0], at[-1])
    axes.set(xlabel="interval between saves", ylabel="goodput (%)", title="Goodput and interval")
    # Near the top, where the choice is; what falls to nothing is not followed down.
    worst = 100 * min(cadence.goodput.mid, cadence.best_goodput.mid)
    axes.set_ylim(max(0.0, 100 - 6 * (100 - worst) - 0.1), 100)
    axes.legend(loc="lower center")


def draw_hour(axes: Axes, hour: Hour) -> None:
    """Draw what happens in one hour: training, writing, uploading."""
    unit, name = (60.0, "minutes") if hour.shown_s > 300 else (1.0, "seconds")
    rows = (
        ("training", (hours.STALL, hours.WAIT)),
        ("to NVMe", (hours.WRITE,)),
        ("to the store", (hours.UPLOAD,)),
    )
    colours = {hours.STALL: RED, hours.WAIT: PURPLE, hours.WRITE: BLUE, hours.UPLOAD: ORANGE}
    labels = {hours.STALL: "stall", hours.WAIT: "waits for uploads"}
    axes.broken_barh(
        [(0, hour.shown_s / unit)], (1.6, 0.8), facecolors=GREEN, alpha=0.35, label="trains"
    )
    for number, (_, kinds) in enumerate(rows):
        for kind in kinds:
            bars = [
                (span.begin_s / unit, (min(span.end_s, hour.shown_s) - span.begin_s) / unit)
                for span in hour.spans
                if span.kind == kind and span.begin_s < hour.shown_s
            ]
            if bars:
                # The edge keeps what lasts a second of an hour visible.
                axes.broken_barh(
                    bars,
                    (1.6 - number, 0.8),
                    facecolors=colours[kind],
                    edgecolors=colours[kind],
                    linewidth=0.8,
                    label=labels.get(kind),
                )
    axes.set_yticks([2.0, 1.0, 0.0], [row for row, _ in rows])
    axes.set_xlim(0, hour.shown_s / unit)
    axes.set_ylim(-0.6, 2.9)
    share = hour.seconds_of(hours.STALL) / hour.shown_s if hour.shown_s else 0.0
    waited = hour.seconds_of(hours.WAIT) / hour.shown_s if hour.shown_s else 0.0
    waits = f", {format_share(waited)} waiting" if waited else ""
    what = f"{format_duration(hour.shown_s)} of saves"
    skipped = f", {hour.num_skipped} uploads left out" if hour.num_skipped else ""
    axes.set(
        xlabel=f"{name} from the beginning of a save",
        title=f"{what}: {format_share(share)} stall{waits}{skipped}",
    )
    axes.grid(visible=False, axis="y")
    axes.legend(loc="upper right", ncols=3, bbox_to_anchor=(1, 1.02))


def draw_size(axes: Axes, size: CheckpointSize, placement: Placement) -> None:
    """Draw the parts of a checkpoint."""
    parts = list(reversed(size.parts))
    mids = [part.nbytes.mid for part in parts]
    lower = [part.nbytes.mid - part.nbytes.low for part in parts]
    upper = [part.nbytes.high - part.nbytes.mid for part in parts]
    axes.barh(
        [part.name for part in parts],
        mids,
        xerr=[lower, upper] if any(upper) or any(lower) else None,
        error_kw={"ecolor": GREY, "capsize": 3, "elinewidth": 1},
        color=[_SERIES[(len(parts) - 1 - n) % len(_SERIES)] for n in range(len(parts))],
        height=0.6,
    )
    for number, part in enumerate(parts):
        axes.annotate(
            part.nbytes.format(format_bytes),
            (part.nbytes.high, number),
            xytext=(6, 0),
            textcoords="offset points",
            va="center",
        )
    axes.set_xlim(0, max(part.nbytes.high for part in parts) * 1.35)
    axes.xaxis.set_major_formatter(_formatter(format_bytes))
    axes.grid(visible=False, axis="y")
    axes.set(
        xlabel="bytes of one checkpoint",
        title=f"One checkpoint: {size.nbytes.format(format_bytes)}, "
        f"{placement.num_writing_ranks:,} shards",
    )


def draw_cost(axes: Axes, costing: Costing, interval_s: float) -> None:
    """Draw totals against the frequency of saves, with bands and crossovers."""
    for number, curve in enumerate(costing.curves):
        colour = _SERIES[number % len(_SERIES)]
        at = [per_hour for per_hour, _ in curve.points]
        # A logarithmic axis has no zero.
        low, mid, high = (
            [max(getattr(band, end), 1e-3) for _, band in curve.points]
            for end in ("low", "mid", "high")
        )
        axes.fill_between(at, low, high, color=colour, alpha=0.13, linewidth=0)
        axes.plot(at, mid, color=colour, label=curve.architecture)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlim(costing.curves[0].points[0][0], costing.curves[0].points[-1][0])
    planned = 3600 / interval_s
    if axes.get_xlim()[0] <= planned <= axes.get_xlim()[1]:
        axes.axvline(planned, color=GREY, linewidth=1, linestyle=":")
        axes.annotate(
            f"planned: {planned:.3g}/h",
            (planned, 0.02),
            xycoords=axes.get_xaxis_transform(),
            xytext=(3, 0),
            textcoords="offset points",
            color=GREY,
            fontsize=8,
        )
    _mark_crossovers(axes, costing)
    axes.xaxis.set_major_formatter(_formatter(lambda value: f"{value:g}"))
    axes.yaxis.set_major_formatter(_formatter(format_usd))
    axes.minorticks_off()
    axes.set(
        xlabel="saves an hour",
        ylabel=f"USD for {format_duration(costing.workload.run_s)}",
        title="Cost and frequency of saves",
    )
    axes.legend(loc="upper left")
    # Room above the curves for the legend.
    bottom, top = axes.get_ylim()
    axes.set_ylim(bottom, top * 30)


def _mark_crossovers(axes: Axes, costing: Costing) -> None:
    totals = {curve.architecture: curve.points for curve in costing.curves}
    found = sorted(
        (per_hour, each.second) for each in costing.crossovers for per_hour in each.per_hour
    )
    for number, (per_hour, second) in enumerate(found):
        near = min(totals[second], key=lambda point: abs(math.log(point[0] / per_hour)))
        place = (per_hour, max(near[1].mid, 1e-3))
        axes.plot(*zip(place, strict=True), "o", color=_INK, zorder=5)
        axes.annotate(
            f"crossover {per_hour:.3g}/h",
            place,
            # One below the other: they may be close to each other.
            xytext=(9, -14 - 12 * (len(found) - 1 - number)),
            textcoords="offset points",
            fontsize=8.5,
        )


def _time_axis(axes: Axes, low_s: float, high_s: float) -> None:
    ticks = [tick for tick in _TICKS_S if low_s <= tick <= high_s]
    axes.set_xscale("log")
    axes.set_xlim(low_s, high_s)
    axes.set_xticks(ticks, [format_duration(tick) for tick in ticks])
    axes.minorticks_off()


def _formatter(write: Callable[[float], str]) -> Any:
    from matplotlib.ticker import FuncFormatter

    return FuncFormatter(lambda value, _: write(value) if value >= 0 else "")


_DRAW: dict[str, Callable[[Any, Any], None]] = {
    "cost": lambda axes, plan: draw_cost(axes, plan.costing, plan.facts.schedule.interval_s),
    "hour": lambda axes, plan: draw_hour(axes, plan.hour),
    "goodput": lambda axes, plan: draw_goodput(axes, plan.cadence, plan.facts.schedule.interval_s),
    "size": lambda axes, plan: draw_size(axes, plan.facts.size, plan.facts.placement),
}
