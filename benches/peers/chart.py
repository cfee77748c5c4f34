"""A page with the charts and tables of what `lazybatch-measure serve-peers` and `serve-in-process` wrote.

    python3 chart.py FOLDER/serve-peers.jsonl [FOLDER/serve-in-process.jsonl] OUT.html

Of every model, and of each protocol and way to arrive, p99 over the offered rate by kind of server:
medians of the runs, with a bar from the least to the most; of repeated lines the last counts. Rates
that were not sustained in most runs are hollow.
"""

import html
import json
import math
import sys
from pathlib import Path

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 640, 320, 64, 44, 16
STYLE = """
:root { color-scheme: light dark; font: 15px/1.5 system-ui, sans-serif; }
body { max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }
svg { width: 100%; height: auto; } svg text { font-size: 12px; fill: currentColor; }
.grid { stroke: currentColor; opacity: .15; } .k0 { color: #0072b2; } .k1 { color: #d55e00; }
.k2 { color: #009e73; } .k3 { color: #cc79a7; }
.k4 { color: #e69f00; } .bar { stroke: currentColor; opacity: .5; } polyline { fill: none; stroke: currentColor; stroke-width: 2; }
circle { fill: currentColor; stroke: currentColor; stroke-width: 2; } circle.open { fill: Canvas; }
table { border-collapse: collapse; } th, td { padding: .15rem .8rem; text-align: right; }
th:first-child, td:first-child { text-align: left; }
"""


def arrivals(row):
    """`poisson`, or the name of the trace's file."""
    return row.get("arrivals", "poisson").rpartition("/")[2]


def read(paths):
    """By (model, protocol and arrivals, kind): latencies and share of sustained runs by rate, and the
    sustained rates; by (model, protocol and arrivals, label): ours over the best others."""
    points, sustained, ratios = {}, {}, {}
    for line in (line for path in paths for line in path.read_text().splitlines()):
        row = json.loads(line)
        key = (row["model"], f'{row.get("over", "in process")}, {arrivals(row)}', row["what"])
        if row["metric"] == "sustained/s":
            sustained[key] = row
        elif row["metric"] in ("p50 ms", "p99 ms", "sustained"):
            points.setdefault(key, {}).setdefault(row["rate"], {})[row["metric"]] = row
        elif row["metric"].endswith(" ratio"):
            ratios.setdefault(key, {})[row["metric"], row["rate"]] = row
    return points, sustained, ratios


def spread(row):
    """Its median, and its least and most where there are several runs."""
    if row["runs"] == 1:
        return f'{row["median"]:.3g}'
    return f'{row["median"]:.3g} ({row["min"]:.3g} to {row["max"]:.3g})'


def axis(values):
    """A logarithmic place of a value between the least and the most, and the powers of ten between."""
    low, high = math.log10(min(values)), math.log10(max(values))
    span = max(high - low, 1e-9)
    tens = [10.0 ** k for k in range(math.floor(low), math.ceil(high) + 1) if low <= k <= high]
    return (lambda v: (math.log10(v) - low) / span), tens


def chart(of):
    """The lines of kinds: `of` has rates with p99 by kind."""
    every = [(rate, p["p99 ms"][end]) for points in of.values() for rate, p in points.items()
             for end in ("min", "max")]
    (x, xs), (y, ys) = axis([e[0] for e in every]), axis([max(e[1], 1e-3) for e in every])
    at = lambda rate, ms: (LEFT + x(rate) * (WIDTH - LEFT - 16),
                           HEIGHT - BOTTOM - y(max(ms, 1e-3)) * (HEIGHT - BOTTOM - TOP))
    out = [f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="p99 over offered rate">']
    for rate in xs:
        px = at(rate, 1e-3 if not ys else ys[0])[0]
        out.append(f'<line class="grid" x1="{px:.1f}" x2="{px:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}"/>'
                   f'<text x="{px:.1f}" y="{HEIGHT - BOTTOM + 16}" text-anchor="middle">{rate:g}</text>')
    for ms in ys:
        py = at(every[0][0], ms)[1]
        out.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - 16}" y1="{py:.1f}" y2="{py:.1f}"/>'
                   f'<text x="{LEFT - 6}" y="{py + 4:.1f}" text-anchor="end">{ms:g}</text>')
    out.append(f'<text x="{WIDTH / 2}" y="{HEIGHT - 6}" text-anchor="middle">requests/s offered</text>'
               f'<text x="12" y="{HEIGHT / 2}" transform="rotate(-90 12 {HEIGHT / 2})" '
               'text-anchor="middle">p99, ms</text>')
    for i, (kind, points) in enumerate(of.items()):
        places = [(*at(rate, p["p99 ms"]["median"]), rate, p) for rate, p in sorted(points.items())]
        line = " ".join(f"{px:.1f},{py:.1f}" for px, py, _, _ in places)
        out.append(f'<g class="k{i % 5}"><polyline points="{line}"/>')
        for px, py, rate, p in places:
            if p["p99 ms"]["runs"] > 1:
                ends = [at(rate, p["p99 ms"][end])[1] for end in ("min", "max")]
                out.append(f'<line class="bar" x1="{px:.1f}" x2="{px:.1f}" '
                           f'y1="{ends[0]:.1f}" y2="{ends[1]:.1f}"/>')
            held = "" if p["sustained"]["median"] >= 0.5 else ' class="open"'
            tip = html.escape(f'{kind}: {rate:g}/s, p50 {spread(p["p50 ms"])} ms, '
                              f'p99 {spread(p["p99 ms"])} ms')
            out.append(f'<circle{held} cx="{px:.1f}" cy="{py:.1f}" r="3.5"><title>{tip}</title></circle>')
        out.append("</g>")
    return "".join(out) + "</svg>"


def beside(label, lines):
    """What the lines of a label say, by (metric, rate)."""
    rates = sorted({rate for _, rate in lines if rate is not None})
    rows = "".join(f'<tr><td>{rate:g}</td>' + "".join(
        f'<td>{spread(lines[metric, rate])}</td>' for metric in ("p50 ratio", "p99 ratio")) + "</tr>"
        for rate in rates)
    told = f'<p>Sustained, {html.escape(label)}: {spread(lines["sustained ratio", None])}.</p>'
    if not rows:
        return told
    return (f"{told}<details><summary>Latencies, {html.escape(label)}, at rates that both sustain"
            f"</summary><table><tr><th>requests/s</th><th>p50</th><th>p99</th></tr>{rows}</table>"
            "</details>")


def page(paths):
    points, sustained, ratios = read(paths)
    body = []
    for model, over in sorted({key[:2] for key in points}):
        of = {key[2]: p for key, p in points.items() if key[:2] == (model, over)}
        legend = " ".join(f'<span class="k{i % 5}">&#9679; {html.escape(kind)}</span>'
                          for i, kind in enumerate(of))
        body.append(f"<h2>{html.escape(model)}, {html.escape(over)}</h2><p>{legend}</p>{chart(of)}")
        rows = []
        for kind in of:
            held = sustained.get((model, over, kind))
            first = of[kind][min(of[kind])]
            told = f'{spread(held)}</td><td>{held["runs"]}' if held else "</td><td>"
            rows.append(f'<tr><td>{html.escape(kind)}</td><td>{spread(first["p50 ms"])}</td>'
                        f'<td>{spread(first["p99 ms"])}</td><td>{told}</td></tr>')
        lowest = min(min(p) for p in of.values())
        body.append(f"<table><tr><th>server</th><th>p50 ms at {lowest:g}/s</th><th>p99 ms at "
                    f"{lowest:g}/s</th><th>sustained/s</th><th>runs</th></tr>{''.join(rows)}</table>")
        for (_, _, label), lines in (r for r in ratios.items() if r[0][:2] == (model, over)):
            body.append(beside(label, lines))
    return ("<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><title>Beside Triton</title>"
            f"<style>{STYLE}</style><h1>Beside Triton</h1>{''.join(body)}</html>\n")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    *paths, out = map(Path, sys.argv[1:])
    out.write_text(page(paths))
