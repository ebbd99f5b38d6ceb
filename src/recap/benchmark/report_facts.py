"""What was run: the summary, the data, the times and the settings of a benchmark, for its page."""

from collections.abc import Iterator, Mapping, Sequence
from html import escape
from statistics import fmean

from recap.benchmark.experiments import flat_settings, measured_on
from recap.benchmark.figures.notes import shown_run
from recap.benchmark.figures.runs import Run
from recap.benchmark.figures.style import dataset_name, method_name, setting_name
from recap.benchmark.run_notes import encoder_name, own_notes
from recap.benchmark.table_cells import mean_over_seeds
from recap.benchmark.table_model import Cell, Column, Label, Number, Row, Table, rank_down
from recap.report.page import definitions

LEVELS = {"image_auroc": "Image", "pixel_auroc": "Pixel"}


def summary_table(runs: Sequence[Run]) -> Table:
    """AUROC of every method on every data set, a block of rows per number of shots."""
    places = [
        (dataset, metric)
        for dataset in _datasets(runs)
        for metric in LEVELS
        if any(run.dataset == dataset and run.metrics.get(metric) is not None for run in runs)
    ]
    columns = [Column(Label(LEVELS[metric]), Label(dataset_name(d))) for d, metric in places]
    rows: list[Row] = []
    for shots in sorted({run.shots for run in runs}):
        block = []
        for method in dict.fromkeys(run.method for run in runs if run.shots == shots):
            own = [run for run in runs if (run.method, run.shots) == (method, shots)]
            cells = tuple(Cell(ours=_number(own, *place)) for place in places)
            block.append(Row((Label(setting_name(shots)), Label(method_name(method))), cells))
        rows += rank_down(block, columns)
    title = Label("Summary: AUROC (%)", own_notes(map(shown_run, runs)))
    return Table("summary", title, ("Setting", "Method"), tuple(columns), tuple(rows))


def run_section(runs: Sequence[Run], studies: Mapping[str, Mapping[str, Sequence[Run]]]) -> str:
    """Cells, data, times, settings and versions as HTML."""
    everything = [
        *runs,
        *(run for study in studies.values() for own in study.values() for run in own),
    ]
    return (
        "<section id='what-was-run'><h2>What was run</h2>\n"
        + _facts(runs, studies, everything)
        + _table(["Data set", "Normal test images", "Abnormal test images"], _splits(everything))
        + _table(
            ["Method", "Setting", "Cells", "Fitting (s)", "Scoring (ms an image)"], _times(runs)
        )
        + _settings(everything)
        + "</section>"
    )


def _facts(
    runs: Sequence[Run],
    studies: Mapping[str, Mapping[str, Sequence[Run]]],
    everything: Sequence[Run],
) -> str:
    hours = (
        sum(sum(run.seconds.values()) for run in {r.file: r for r in everything}.values()) / 3600
    )
    facts = {
        "Cells of the grid": str(len(runs)),
        "Methods": ", ".join(dict.fromkeys(method_name(run.method) for run in runs)),
        "Shots": ", ".join(setting_name(k) for k in sorted({run.shots for run in runs})),
        "Seeds": ", ".join(map(str, sorted({run.seed for run in everything}))),
        "Studies": ", ".join(f"{n} ({len(v)} variants)" for n, v in studies.items()),
        "Encoders": ", ".join(sorted({encoder_name(r.cell["settings"]) for r in everything})),
        "Versions": ", ".join(
            sorted({f"{k} {v}" for r in everything for k, v in r.versions.items()})
        ),
        "Computing time": f"{hours:.1f} h" if hours >= 1 else f"{60 * hours:.1f} min",
    }
    return definitions("facts", ((k, value) for k, value in facts.items() if value)) + "\n"


def _splits(everything: Sequence[Run]) -> Iterator[list[str]]:
    """Studies may be of the pools, which are no test images."""
    runs = [run for run in everything if measured_on(run.cell) == "test"]
    for dataset in _datasets(runs):
        own = [run for run in runs if run.dataset == dataset]
        abnormal = sorted({int(run.abnormal.sum()) for run in own})
        normal = sorted({int((~run.abnormal).sum()) for run in own})
        yield [
            dataset_name(dataset),
            " or ".join(map(str, normal)),
            " or ".join(map(str, abnormal)),
        ]


def _times(runs: Sequence[Run]) -> Iterator[list[str]]:
    for method, shots in sorted({(run.method, run.shots) for run in runs}):
        own = [r for r in runs if (r.method, r.shots) == (method, shots) and "fit" in r.seconds]
        if own:
            fit = fmean(run.seconds["fit"] for run in own)
            score = sum(r.seconds["score"] for r in own) / sum(len(r.scores) for r in own)
            times = [str(len(own)), f"{fit:.0f}", f"{1000 * score:.0f}"]
            yield [method_name(method), setting_name(shots), *times]


def _settings(runs: Sequence[Run]) -> str:
    """The settings that all cells share, and before them the ones in which cells differ."""
    seen: dict[str, set[str]] = {}
    for run in runs:
        for key, value in flat_settings(run.cell["settings"]):
            seen.setdefault(key, set()).add("none" if value is None else str(value))
    seen.pop("seed", None)
    differing = {key: " / ".join(sorted(v)) for key, v in seen.items() if len(v) > 1}
    shared = {key: value for key, (value, *others) in seen.items() if not others}
    parts = (("Settings that differ between cells", differing), ("Settings of all cells", shared))
    return "".join(
        f"<details><summary>{title} ({len(values)})</summary>\n"
        f"{definitions('facts', values.items())}</details>\n"
        for title, values in parts
        if values
    )


def _table(head: Sequence[str], rows: Iterator[list[str]]) -> str:
    lines = [
        f"<tr><th scope='row'>{escape(row[0])}</th>"
        + "".join(f"<td>{escape(text)}</td>" for text in row[1:])
        + "</tr>"
        for row in rows
    ]
    if not lines:
        return ""
    names = "".join(f"<th scope='col'>{escape(name)}</th>" for name in head)
    body = "\n".join(lines)
    return (
        f"<div class='scroll small'><table><thead><tr>{names}</tr></thead>\n"
        f"<tbody>{body}</tbody></table></div>\n"
    )


def _datasets(runs: Sequence[Run]) -> list[str]:
    return sorted({run.dataset for run in runs}, key=dataset_name)


def _number(runs: Sequence[Run], dataset: str, metric: str) -> Number | None:
    values = [
        100 * value
        for run in runs
        if run.dataset == dataset and (value := run.metrics.get(metric)) is not None
    ]
    return mean_over_seeds(values)
