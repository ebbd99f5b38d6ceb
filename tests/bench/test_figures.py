import io
import json
import sys
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from made_runs import (
    made_cell,
    summary_row,
    write_cell,
    write_experiment,
    write_summary_rows,
)
from recap.bench.examples import read_examples, read_maps
from recap.bench.figures import make_figures, render, write_figures
from recap.bench.figures.distributions import _ends, _shares
from recap.bench.figures.qualitative import _columns, _first_seeds
from recap.bench.figures.runs import auroc_text, read_run, read_runs, read_variants
from recap.bench.figures.sensitivity import read_summary, study_figures
from recap.bench.kept import result_file
from recap.errors import InputError

pytest.importorskip("matplotlib")


@pytest.fixture(scope="module")
def out(tmp_path_factory):
    """Two methods, two seeds, one data set; and a study of the conditioning."""
    folder = tmp_path_factory.mktemp("made")
    grid = {m: [made_cell(m, "Brain", 4, seed) for seed in (0, 1)] for m in ("recap", "nearest")}
    study = {
        kind: [made_cell("recap", "Brain", 4, 0, conditioning=kind)]
        for kind in ("gated", "unbounded", "static")
    }
    for cell in [*grid["recap"], *grid["nearest"], *(c for own in study.values() for c in own)]:
        write_cell(folder, cell)
    write_experiment(folder, "grid", grid)
    write_experiment(folder, "conditioning", study)
    write_summary_rows(folder, "components", component_rows())
    return folder


def component_rows():
    return [
        summary_row("recap", "image_auroc"),
        summary_row("no_memory", "image_auroc", delta=-0.02, delta_low=-0.04, delta_high=-0.01),
        summary_row("no_memory", "pixel_auroc", delta=-0.02, delta_std=0.03),
    ]


def named(figures):
    return {figure.name: figure for figure in figures}


def test_every_kind_has_its_figures(out):
    made = make_figures(out)
    assert list(named(made.all)) == [
        "scores-recap",
        "scores-nearest",
        "maps-Brain-4-shot",
        "components-4-shot",
        "drift-recap-Brain",
        "drift-conditioning-Brain-4-shot",
    ]
    assert made.skipped == {}
    assert all(figure.title and figure.caption for figure in made.all)


@pytest.fixture(scope="module")
def drawn(out):
    return {figure.name: render(figure, "png", "svg", dpi=40) for figure in make_figures(out).all}


def test_pictures_are_whole_and_of_print_width(drawn):
    for name, (png, svg) in drawn.items():
        width, height = Image.open(io.BytesIO(png)).size
        assert 3.5 * 40 <= width <= 7.3 * 40, name
        assert height > 40
        assert svg.startswith(b"<?xml")


def test_what_must_be_known_is_in_the_picture_below_the_legend(out, drawn):
    made = named(make_figures(out).all)
    for name, figure in made.items():
        if name != "components-4-shot":  # its summary is from before there were notes
            assert "encoder dinov2-small at 240 px" in figure.notes[0], name
            assert (
                "BrainMRI: In the published benchmark, supports and test images" in figure.notes[1]
            )
    bare = render(replace(made["scores-nearest"], notes=()), "png", dpi=40)
    files = (drawn["scores-nearest"][0], *bare)
    pictures = [np.asarray(Image.open(io.BytesIO(file)), int) for file in files]
    height = len(pictures[1])
    assert len(pictures[0]) > height + 10
    legend = slice(height - 10, height - 2)
    assert (pictures[1][legend] < 128).any()
    assert (pictures[0][legend] < 128).any()
    assert (pictures[0][height:] < 128).any()


def test_the_notes_of_a_summary_are_in_its_figure(tmp_path):
    rows = [summary_row("recap", "image_auroc", notes=[["own-settings", "Ours: tiny."]])]
    write_summary_rows(tmp_path, "components", rows)
    (figure,) = study_figures(tmp_path)
    assert figure.notes == ("Ours: tiny.",)


def test_the_same_results_give_the_same_bytes(out, drawn):
    for figure in make_figures(out).all:
        if figure.name in ("scores-recap", "components-4-shot"):
            assert render(figure, "png", "svg", dpi=40) == drawn[figure.name]
    for _, svg in drawn.values():
        assert b"dc:date" not in svg
        assert b"Matplotlib" not in svg


def test_drawing_leaves_the_readers_matplotlib_alone(out, monkeypatch):
    import matplotlib

    monkeypatch.delitem(sys.modules, "matplotlib.pyplot", raising=False)
    before = matplotlib.rcParams.copy()
    made = {figure.name: figure for figure in make_figures(out).all}
    for name in ("drift-conditioning-Brain-4-shot", "maps-Brain-4-shot"):
        render(made[name], "png", dpi=30)
    assert matplotlib.rcParams.copy() == before
    assert "matplotlib.pyplot" not in sys.modules


@pytest.fixture(scope="module")
def written(out):
    """All text of each figure, as drawn."""
    return {figure.name: texts(figure) for figure in make_figures(out).all}


def texts(figure):
    from matplotlib.text import Text

    from recap.bench.figures.style import _house_style

    with _house_style():
        return [text for text in figure.draw().findobj(Text) if text.get_text()]


def test_no_text_is_smaller_than_seven_points(written):
    for name, said in written.items():
        assert min(text.get_fontsize() for text in said) >= 7, name


def test_titles_say_data_set_shots_and_seeds(written):
    for name, texts_of in written.items():
        said = " ".join(text.get_text() for text in texts_of)
        for word in ("BrainMRI", "K = 4", "seed"):
            assert word in said, (name, word)


def test_a_panel_tells_the_mean_auroc(out):
    runs = [run for run in read_runs(out) if run.method == "recap"]
    values = 100 * np.array([run.metrics["image_auroc"] for run in runs])
    assert auroc_text(runs) == f"AUROC {values.mean():.1f} ± {values.std(ddof=1):.1f} %"
    assert auroc_text(runs[:1]) == f"AUROC {values[0]:.1f} %"


def test_shares_are_of_a_class_and_lose_no_image():
    edges = np.linspace(0, 1, 5)
    shares = _shares(np.array([-1, 0.1, 0.3, 2], np.float32), edges)
    assert shares.tolist() == [50, 25, 0, 25]


def test_the_score_axis_holds_all_scores(out):
    runs = read_runs(out)
    low, high = _ends(runs)
    assert low <= min(run.scores.min() for run in runs)
    assert high >= max(run.scores.max() for run in runs)


def test_the_scale_of_maps_is_of_the_method_and_counts_normal_images(out):
    runs = [run for run in read_runs(out) if run.seed == 0]
    columns = _columns(runs, read_examples(out, "Brain"))
    assert [column.method for column in columns] == ["recap", "nearest"]
    for run, column in zip(runs, columns, strict=True):
        kept = np.stack(list(read_maps(run.file).values()))
        assert "normal/image-0.png" in column.maps
        assert column.top == pytest.approx(np.percentile(kept, 99.5), rel=1e-6)
    assert columns[1].top < columns[0].top / 2


def test_an_empty_mask_is_not_a_normal_image(written):
    said = [text.get_text() for text in written["maps-Brain-4-shot"]]
    assert said.count("no mask") == 1
    assert sum(text.startswith("normal:") for text in said) == 1
    assert any(text.startswith("ReCAP\n0 to 0.") for text in said)


def test_maps_are_of_the_first_seed(out):
    runs = read_runs(out)[::-1]
    assert [(run.method, run.seed) for run in _first_seeds(runs)] == [("recap", 0), ("nearest", 0)]


def test_drift_of_images_reaches_the_panel(out, written):
    runs = [run for run in read_runs(out) if run.method == "recap"]
    said = [text.get_text() for text in written["drift-recap-Brain"]]
    moved = np.concatenate([run.drift[:, 0, 0] for run in runs])
    labels = np.concatenate([run.abnormal for run in runs])
    more = 100 * (np.median(moved[labels]) / np.median(moved[~labels]) - 1)
    expected = f"{more:+.1f} %" if abs(more) < 10 else f"{more:+.0f} %"
    assert expected.replace("-", "−") in said


def test_prototypes_that_stand_still_are_not_drawn(out, written):
    variants = read_variants(out, "conditioning")
    assert set(variants) == {"gated", "unbounded", "static"}
    said = [text.get_text() for text in written["drift-conditioning-Brain-4-shot"]]
    assert "gated" in said
    assert "unbounded" in said
    assert "static" not in said


def test_summaries_are_read_in_percent(out):
    reference, images, pixels = read_summary(out / "experiments" / "components-summary.json")
    assert reference.reference
    assert reference.delta is None
    assert images.delta == pytest.approx(-2)
    assert images.interval == pytest.approx((-4, -1))
    assert images.resampled
    assert pixels.interval == pytest.approx((-5, 1))
    assert not pixels.resampled


@pytest.mark.parametrize(
    ("name", "variants"),
    [
        ("sweep-eta", {"0.01": 0.01, "0.05": 0.05, "0.2": 0.2}),
        ("sweep-lambda", {"0": 0.0, "0.5": 0.5, "1": 1.0}),
        ("sweep-delta-sep", {"δ = -0.5, λ_sep = 0.1": None, "δ = 0, λ_sep = 1": None}),
    ],
)
def test_sweeps_are_curves(tmp_path, name, variants):
    rows = [
        summary_row(label, "image_auroc", dataset, value=value)
        for dataset in ("Brain", "Chest")
        for label, value in variants.items()
    ]
    write_summary_rows(tmp_path, name, rows)
    (figure,) = study_figures(tmp_path)
    assert figure.name == f"{name}-4-shot"
    assert figure.title.startswith("Sensitivity to the ")
    said = [text.get_text() for text in texts(figure)]
    assert any("Chest" in text for text in said)


@pytest.mark.parametrize("value", [None, 0.05])
def test_one_seed_has_no_deviation_and_no_bar(tmp_path, value):
    one = {"std": None, "seeds": 1, "value": value}
    rows = [
        summary_row("recap", "image_auroc", **one),
        summary_row("no_memory", "image_auroc", delta=-0.02, **one),
    ]
    write_summary_rows(tmp_path, "components", rows)
    (figure,) = study_figures(tmp_path)
    said = [text.get_text() for text in texts(figure)]
    assert not any("±" in text for text in said)
    assert ("90.0" in said) == (value is None)
    (panel,) = figure.draw().axes
    bars = [segment for lines in panel.collections for segment in lines.get_segments()]
    caps = [line.get_xydata() for line in panel.lines if line.get_marker() in ("|", "_")]
    assert not any(np.isfinite(ends).all(axis=-1).any() for ends in (*bars, *caps) if ends.size)


def test_a_damaged_summary_is_named(tmp_path):
    write_summary_rows(tmp_path, "sweep-eta", [{"metric": "image_auroc"}])
    with pytest.raises(InputError, match=r"sweep-eta-summary\.json: is damaged"):
        study_figures(tmp_path)


def test_what_cannot_be_drawn_is_named(tmp_path):
    write_cell(tmp_path, made_cell("nearest", "Chest", 4, 0), maps=False)
    made = make_figures(tmp_path)
    assert list(made.kinds) == ["Score distributions"]
    assert list(made.skipped) == [
        "Anomaly maps",
        "Sensitivity and ablations",
        "Drift of the prototypes",
    ]


def test_cells_of_studies_are_not_in_the_grid(out):
    assert len(read_runs(out)) == 4


def test_a_folder_without_experiments_is_one_grid_that_mixes_nothing(tmp_path):
    write_cell(tmp_path, made_cell("recap", "Brain", 4, 0), maps=False)
    assert len(read_runs(tmp_path)) == 1
    write_cell(tmp_path, made_cell("recap", "Brain", 4, 0, eta=0.1), maps=False)
    with pytest.raises(InputError, match="Two results for recap on Brain, 4 shots"):
        read_runs(tmp_path)


def test_presets_of_one_method_are_told_apart(tmp_path):
    write_cell(tmp_path, made_cell("recap", "Brain", 4, 0, preset="fast"), maps=False)
    assert [run.method for run in read_runs(tmp_path)] == ["recap"]
    write_cell(tmp_path, made_cell("recap", "Brain", 4, 0, preset="recap"), maps=False)
    assert sorted(run.method for run in read_runs(tmp_path)) == ["recap", "recap (fast)"]
    names = {figure.name for figure in make_figures(tmp_path).all}
    assert {"scores-recap", "scores-recap-fast", "drift-recap-fast-Brain"} <= names


def test_a_damaged_result_is_named(tmp_path):
    cell = made_cell("recap", "Brain", 4, 0)
    write_cell(tmp_path, cell, maps=False)
    file = result_file(tmp_path, cell)
    content = json.loads(file.read_text())
    del content["images"]
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"seed-0-.*\.json: is damaged"):
        read_run(tmp_path, cell.name)
    with pytest.raises(InputError, match="no results here"):
        read_runs(tmp_path / "elsewhere")


def test_figures_are_written_in_both_forms(tmp_path):
    write_cell(tmp_path, made_cell("nearest", "Chest", 4, 0), maps=False)
    steps = []
    files = write_figures(
        make_figures(tmp_path), tmp_path / "figures", lambda *step: steps.append(step)
    )
    assert [file.name for file in files] == ["scores-nearest.png", "scores-nearest.svg"]
    assert steps == [("figures", 1, 1, "scores-nearest")]
    with Image.open(files[0]) as picture:
        assert picture.info["dpi"][0] == pytest.approx(300, abs=0.1)
