"""The paper's tables: what stands where, how it is ranked, and every format by hand."""

import csv
import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from recap.bench.possible import Violation
from recap.bench.published import Note, PublishedCell, TestSplit
from recap.bench.render import CSV_FIELDS, render
from recap.bench.table_cells import ResultCell
from recap.bench.table_model import Cell, Column, Label, Number, Row, Table, rank_cells
from recap.bench.tables import (
    Results,
    backbones_table,
    components_table,
    conditioning_table,
    efficiency_table,
    few_shot_table,
    paper_tables,
    seeds_table,
    zero_shot_table,
)
from recap.errors import InputError, SettingsError


def run(method, dataset, shots, seed, backbone="", counts=None, **metrics):
    named = {name.replace("aupro_03", "aupro_0.3"): value for name, value in metrics.items()}
    return ResultCell(method, dataset, shots, seed, named, backbone, counts)


def find(table, *labels):
    rows = [row for row in table.rows if tuple(label.text for label in row.labels) == labels]
    assert len(rows) == 1, labels
    return dict(zip([_name(column) for column in table.columns], rows[0].cells, strict=True))


def _name(column):
    return f"{column.group.text} {column.label.text}" if column.group else column.label.text


def test_ours_is_the_mean_over_seeds_beside_the_published_value():
    results = [
        run("recap", "Brain", 4, 0, image_auroc=0.90),
        run("ReCAP", "Brain_AD", 4, 1, image_auroc=0.94),
        run("recap", "Brain", 2, 0, image_auroc=0.10),
    ]
    cell = find(few_shot_table(results, 4), "Image", "BrainMRI", "AUROC")["ReCAP"]
    assert cell.ours.value == pytest.approx(92.0)
    assert cell.ours.std == pytest.approx(8**0.5)
    assert cell.ours.seeds == 2
    assert cell.published.value == 95.14


def test_what_the_paper_does_not_have_gets_its_own_row_and_column():
    results = [
        run("knn", "Skin", 0, 0, image_auroc=0.8, pixel_aupro_03=0.5),
        run("knn", "Liver", 0, 0, image_auroc=None, image_ap=float("nan"), image_f1_max=0.7),
    ]
    table = zero_shot_table(results)
    assert [column.label.text for column in table.columns][-2:] == ["ReCAP", "knn"]
    assert find(table, "Image", "Skin", "AUROC")["knn"].ours.value == pytest.approx(80)
    assert find(table, "Pixel", "Skin", "AUPRO 0.3")["knn"].ours.value == pytest.approx(50)
    assert find(table, "Image", "LiverCT", "AUROC")["knn"] == Cell()
    assert find(table, "Image", "LiverCT", "AP")["knn"] == Cell()
    assert find(table, "Image", "LiverCT", "F1-max")["knn"].ours.value == pytest.approx(70)


def test_two_results_of_one_seed_are_refused():
    twice = [run("recap", "Brain", 4, 0, image_auroc=x) for x in (0.8, 0.9)]
    with pytest.raises(InputError, match=r"Two results for ReCAP on BrainMRI, 4 shots, seed 0"):
        few_shot_table(twice, 4)
    encoders = [
        run("recap", "Liver", 4, 0, backbone=name, image_auroc=0.8)
        for name in ("dinov2-base", "dinov2-small")
    ]
    assert len(backbones_table(encoders).rows) == 9
    with pytest.raises(InputError):
        few_shot_table(encoders, 4)


def test_impossible_values_are_marked_and_never_ranked():
    row = find(few_shot_table([], 16), "Image", "BrainMRI", "AP")
    assert row["ReCAP"].violation.kind == "ap_ceiling"
    assert row["ReCAP"].published.rank == ""
    assert [name for name, cell in row.items() if cell.published.rank == "best"] != []


def test_38_daggers_over_all_tables():
    marks = [cell.violation.mark for t in paper_tables() for cell in t.cells if cell.violation]
    assert marks.count("†") == 38
    assert marks.count("‡") == 4
    text = render(paper_tables(), "md")
    body = [line for line in text.splitlines() if line.startswith("|")]
    assert "\n".join(body).count("†") == 38


def test_seeds_are_ranked_within_each_k():
    table = seeds_table([run("recap", "HIS", 4, seed, image_auroc=0.8) for seed in range(3)])
    top = find(table, "K = 2", "ReCAP")["HIS AC"]
    assert (top.published.value, top.published.std, top.published.rank) == (85.76, 0.32, "best")
    assert find(table, "K = 4", "ReCAP")["HIS AC"].ours.seeds == 3
    assert find(table, "K = 2", "MadCLIP")["BrainMRI AS"].published.rank == "best"
    assert len(table.rows) == 28
    assert not any(_name(column) == "HIS AS" for column in table.columns)


def test_ablations_take_our_names_of_the_variants():
    without = [run("no_memory", "Liver", 4, 0, image_auroc=0.5)]
    assert find(components_table(without), "w/o MB", "", "✓", "✓")["LiverCT AC"].ours.value == 50
    modes = [
        run(mode, "RESC", k, 0, pixel_auroc=score)
        for k in (0, 4)
        for mode, score in (("gated", 0.9), ("static", 0.8))
    ]
    table = conditioning_table(modes)
    assert len(table.rows) == 5
    assert find(table, "Bounded gated residual")["4-shot RESC AS"].ours.rank == "best"
    assert find(table, "Static prototypes")["Zero-shot RESC AS"].ours.rank == "second"
    encoder = [run("recap", "Liver", 2, 0, backbone="clip-vit-b16", image_auroc=0.6)]
    assert find(backbones_table(encoder), "2", "CLIP ViT-B/16")["LiverCT AC"].ours.value == 60


def test_backbones_are_ranked_within_each_number_of_shots():
    table = backbones_table()
    assert find(table, "2", "CLIP ViT-L/14@336px")["LiverCT AC"].published.rank == "best"
    assert find(table, "4", "DINOv2 ViT-L/14")["LiverCT AC"].published.rank == "best"


def test_caveats_of_supports_stand_beside_zero_shot_rows_too():
    results = [run("recap", "Liver", k, 0, "dinov2-small", image_auroc=0.8) for k in (0, 4)]
    table = backbones_table(results)
    assert {row.labels[0].text for row in table.rows} == {"0", "2", "4"}
    (liver, *_) = [column.group for column in table.columns if column.group.text == "LiverCT"]
    assert "shared-patients" in [note.key for note in liver.notes]


def test_efficiency_keeps_input_sizes_and_encoders_apart():
    timing = {"params": 22_032_408, "latency_ms_mean": 30.0, "latency_ms_std": 1.5}
    results = [
        run("recap", "", 0, 0, input_px=240, ratio_to_encoder=1.25, **timing),
        run("visualad", "", 0, 0, "clip-vit-l14-336", input_px=518, latency_ms_mean=90.0),
        run("recap", "", 0, 0, "dinov2-small", input_px=240, latency_ms_mean=5.0),
    ]
    table = efficiency_table(results)
    assert len(table.rows) == 12
    row = find(table, "0", "ReCAP", "CLIP ViT-L/14@336px", "240")
    assert row["Added (M)"].ours.value == pytest.approx(22.032408)
    assert row["Added (M)"].published.value == 22.0
    assert row["Latency (ms)"].ours == Number(30.0, 1.5, rank="second")
    assert row["Latency (ms)"].published == Number(17.4, 2.0, rank="best")
    assert row["Latency / encoder"].ours.value == 1.25
    slow = find(table, "0", "VisualAD", "CLIP ViT-L/14@336px", "518")["Latency (ms)"]
    assert slow == Cell(ours=Number(90.0))


def test_every_k_that_we_ran_has_a_table():
    tables = paper_tables(Results(runs=[run("recap", "Brain", 1, 0, image_auroc=0.5)]))
    names = [table.key for table in tables]
    assert names[:6] == ["zero-shot"] + [f"few-shot-{k}" for k in (1, 2, 4, 8, 16)]
    assert names[6:] == ["seeds", "components", "conditioning", "backbones", "efficiency"]
    assert tables[1].sides == ("ours",)


def test_another_test_split_is_a_footnote():
    results = [run("recap", "HIS", 0, 0, counts=(60, 40), image_auroc=0.9)]
    text = render([zero_shot_table(results)], "md")
    assert "60 abnormal and 40 normal test images, the paper's on 1000 and 1000" in text


numbers = st.lists(st.none() | st.integers(0, 5).map(float), min_size=1, max_size=7)


@given(numbers, st.sampled_from(["high", "low"]))
def test_ranks_follow_the_values(values, better):
    cells = [Cell(ours=None if v is None else Number(v)) for v in values]
    ranked = rank_cells(cells, [better] * len(cells), [2] * len(cells))
    shown = [cell.ours for cell in ranked if cell.ours]
    order = sorted({n.value for n in shown}, reverse=better == "high")
    wanted = dict(zip(order, ["best", "second"], strict=False)) if len(shown) > 1 else {}
    assert [n.rank for n in shown] == [wanted.get(n.value, "") for n in shown]


def test_numbers_that_print_alike_share_a_rank():
    cells = [Cell(ours=Number(v)) for v in (90.001, 90.004, 89.0, 88.0)]
    ranked = rank_cells(cells, ["high"] * 4, [2] * 4)
    assert [cell.ours.rank for cell in ranked] == ["best", "best", "second", ""]


def small_table():
    """Two methods on one data set with every feature that a format has to show."""
    split = TestSplit("A&B", 10, 10, "")
    printed = PublishedCell("zero_shot", 0, "two", "", "A&B", "image", "f1_max", 50.0)
    broken = Violation(printed, "f1_floor", 200 / 3, split, 60.0)
    note = Note("key", "Mind <this> & 5 %.")
    columns = (
        Column(Label("one_1"), Label("Group")),
        Column(Label("two"), Label("Group")),
    )
    first = (
        Cell(Number(91.234, 1.5, 3, "best"), Number(80.0, rank="second")),
        Cell(Number(90.0, None, 1, "second"), Number(50.0), broken),
    )
    rows = (
        Row((Label("A&B", (note,)), Label("F1|max")), first),
        Row((Label("A&B", (note,)), Label("AP")), (Cell(), Cell(published=Number(70.0)))),
    )
    return Table("small", Label("Title"), ("Data", "Metric"), columns, rows)


REASON = (
    "A&B: F1-max cannot be below 66.67: with 10 abnormal and 10 normal test images, calling all of "
    "them abnormal already gives that."
)


def test_markdown_by_hand():
    ampersand = REASON.replace("&", "&amp;")
    assert render([small_table()], "md") == (
        "### Title\n\nOurs first, the published value in brackets; best bold, second underlined, "
        "ours and published apart. Ours is the mean ± standard deviation over 1 to 3 seeds.\n\n"
        "| Data | Metric | Group one\\_1 | Group two |\n"
        "| --- | --- | ---: | ---: |\n"
        "| A&amp;B<sup>1</sup> | F1\\|max | **91.23 ± 1.50** (<ins>80.00</ins>) |"
        " <ins>90.00</ins> (50.00†) |\n"
        "| A&amp;B | AP | – | – (70.00) |\n\n"
        "- <sup>1</sup> Mind &lt;this&gt; &amp; 5 %.\n"
        f"- <sup>†</sup> {ampersand}\n"
    )


def test_csv_by_hand():
    text = render([small_table()], "csv")
    assert text.splitlines()[0] == ",".join(CSV_FIELDS)
    *lines, note = text.splitlines(keepends=True)
    assert note == "# key (small): Mind <this> & 5 %.\n"
    rows = list(csv.reader(io.StringIO("".join(lines))))[1:]
    name = ["small", "A&B / F1|max"]
    assert rows[0] == [
        *name, "Group / one_1", "91.2340", "1.5000", "3", "best", "80.00", "", "second", "", "key"
    ]  # fmt: skip
    assert rows[1] == [
        *name, "Group / two", "90.0000", "", "1", "second", "50.00", "", "", REASON, "key"
    ]  # fmt: skip
    assert rows[2] == ["small", "A&B / AP", "Group / one_1", *[""] * 8, "key"]
    assert len(rows) == 4


def test_csv_has_the_text_of_every_key():
    results = [run("recap", "Brain", k, 0, counts=(3, 4), image_auroc=0.9) for k in (0, 4)]
    lines = render(paper_tables(Results(runs=results)), "csv").splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("# "))
    table, notes = lines[:first], lines[first:]
    assert all(line.startswith("# ") for line in notes)
    told = {re.match(r"# (\S+) \(.+?\): .{20}", line)[1] for line in notes}
    used = {key for row in csv.DictReader(table) for key in row["notes"].split()}
    assert used == told
    shared = next(line for line in notes if line.startswith("# two-pros"))
    assert shared.startswith("# two-pros (zero-shot, few-shot-2, few-shot-4, few-shot-8, few-sho")


def test_latex_by_hand():
    escaped = REASON.replace("&", "\\&")
    assert render([small_table()], "latex").splitlines() == [
        "% needs \\usepackage{booktabs,graphicx}",
        "\\begin{table*}[t]",
        "\\centering",
        "\\footnotesize",
        "\\caption{Title. Ours first, the published value in brackets; best bold, second "
        "underlined, ours and published apart. Ours is the mean $\\pm$ standard deviation over 1 "
        "to 3 seeds.}",
        "\\label{tab:small}",
        "\\begin{tabular}{llcc}",
        "\\toprule",
        " &  & \\multicolumn{2}{c}{Group} \\\\",
        "\\cmidrule(lr){3-4}",
        "Data & Metric & one\\_1 & two \\\\",
        "\\midrule",
        "A\\&B\\textsuperscript{1} & F1|max & \\textbf{91.23 $\\pm$ 1.50} (\\underline{80.00}) & "
        "\\underline{90.00} (50.00\\textsuperscript{\\dag{}}) \\\\",
        "A\\&B & AP & -- & -- (70.00) \\\\",
        "\\bottomrule",
        "\\end{tabular}%",
        "\\par\\medskip",
        "\\raggedright\\scriptsize",
        "\\textsuperscript{1}~Mind \\textless{}this\\textgreater{} \\& 5 \\%.\\par",
        f"\\textsuperscript{{\\dag{{}}}}~{escaped}\\par",
        "\\end{table*}",
    ]


def test_whole_latex_has_even_rows_and_braces():
    for block in re.findall(
        r"\\begin\{tabular\}\{(\w+)\}(.*?)\\end\{tabular\}", render(paper_tables(), "latex"), re.S
    ):
        shape, body = block
        for line in body.splitlines():
            if line.endswith("\\\\"):
                spans = [int(n) - 1 for n in re.findall(r"\\multicolumn\{(\d+)\}", line)]
                cells = len(re.findall(r"(?<!\\)&", line)) + 1 + sum(spans)
                assert cells == len(shape)
                plain = re.sub(r"\\[{}]", "", line)
                assert plain.count("{") == plain.count("}")


def test_hostile_names_stay_text():
    name = "<b>x</b>_&%$#{}~^\\[|`*"
    results = [run(name, name, 0, 0, image_auroc=0.5)]
    table = zero_shot_table(results)
    assert "<b>" not in render([table], "md")
    line = next(x for x in render([table], "latex").splitlines() if x.startswith("Level &"))
    assert line.endswith(
        r"\textless{}b\textgreater{}x\textless{}/b\textgreater{}\_\&\%\$\#\{\}"
        r"\textasciitilde{}\textasciicircum{}\textbackslash{}{[}|`* \\"
    )


def test_unknown_formats_are_named():
    with pytest.raises(SettingsError, match=r"'pdf'. Use one of: md, csv, latex"):
        render([], "pdf")
