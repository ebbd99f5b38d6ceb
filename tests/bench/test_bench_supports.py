"""Few-shot cells that are fitted on listed images, not on drawn ones."""

import pytest

from recap.bench.cells import plan_cells
from recap.bench.kept import read_results
from recap.bench.run import run_cells
from recap.bench.run_cell import _fit
from recap.bench.studies import plan_study
from recap.bench.supports import Supports, read_lists
from recap.bench.table_model import footnotes
from recap.bench.tables import few_shot_table, own_table, result_cell, zero_shot_table
from recap.data import draw_support, write_phantoms
from recap.data.supports import write_support
from recap.errors import InputError, SettingsError
from recap.methods.registry import resolve_settings
from recap.progress import silent


@pytest.fixture(scope="module")
def domains(tmp_path_factory):
    root = tmp_path_factory.mktemp("phantoms")
    return write_phantoms(root, pool=4, test=2, size_px=70, domains=["Brain", "Chest"])


@pytest.fixture
def folder(domains, tmp_path):
    """Lists of two shots, in the published format: another draw than the default."""
    for domain in domains:
        write_list(tmp_path, domain, draw_support(domain, 2, draw=3))
    return tmp_path


def write_list(folder, domain, support, shots=2):
    file = folder / domain.name / f"{shots}-shot.txt"
    file.parent.mkdir(exist_ok=True)
    lines = {"a": support.abnormal, "n": support.normal}
    text = [" ".join([f"{k}-0:", *(s.path.name for s in own)]) for k, own in lines.items()]
    file.write_text("\n".join(text))
    return file


def plan(lists=None, shots=(2,)):
    settings = {"recap": resolve_settings()}
    return plan_cells(settings, ["Brain", "Chest"], shots, [0, 1], lists=lists)


def test_a_list_makes_another_cell_that_is_fitted_on_it(domains, folder, tmp_path, tiny_folder):
    lists = read_lists(folder, domains, ["Brain"], [0, 2])
    wanted = draw_support(domains[0], 2, draw=3)
    assert wanted != draw_support(domains[0], 2)
    assert lists["Brain", 2].find(domains[0]) == wanted
    encoder = {"name": str(tiny_folder), "input_px": 70}
    settings = resolve_settings(encoder=encoder, training={"epochs": 1, "augment": False})
    cells = plan_cells({"recap": settings}, ["Brain"], [0, 2], [0], lists=lists)
    assert [cell.supports is None for cell in cells] == [False, True]
    support = [*wanted.normal, *wanted.abnormal]
    assert cells[0].support(Supports(domains)) == wanted
    detector = _fit(cells[0], domains, support, None, tmp_path / "work", silent)
    names = [sample.path.name for sample in (*wanted.normal, *wanted.abnormal)]
    assert [record["name"] for record in detector.card.support] == names
    assert run_cells(cells[:1], domains, tmp_path / "runs") == {}
    (result,) = read_results(tmp_path / "runs")
    assert [path.split("/")[-1] for path in result["cell"]["supports"]["normal"]] == names[:2]
    assert result["fingerprint"] == detector.card.fingerprint


def test_the_content_of_the_list_is_part_of_the_cell(domains, folder):
    drawn = plan()
    listed = plan(read_lists(folder, domains, ["Brain", "Chest"], [2]))
    assert not {c.name for c in drawn} & {c.name for c in listed}
    assert not {c.fit_name for c in drawn} & {c.fit_name for c in listed}
    assert listed == plan(read_lists(folder, domains, ["Brain", "Chest"], [2]))
    write_list(folder, domains[0], draw_support(domains[0], 2, draw=5))
    again = plan(read_lists(folder, domains, ["Brain", "Chest"], [2]))
    same = {c.dataset for c, d in zip(listed, again, strict=True) if c.name == d.name}
    assert same == {"Chest"}


def test_lists_with_hashes_are_checked(domains, folder):
    write_support(draw_support(domains[0], 2), folder / "Brain" / "2-shot.txt")
    found = read_lists(folder, domains, ["Brain"], [2])["Brain", 2].find(domains[0])
    assert found == draw_support(domains[0], 2)


def test_wrong_lists_are_told_at_the_start(domains, folder):
    with pytest.raises(InputError, match=r"Chest/4-shot\.txt: there is no such support list"):
        read_lists(folder, domains, ["Chest"], [2, 4])
    write_list(folder, domains[0], draw_support(domains[0], 3), shots=4)
    with pytest.raises(InputError, match="lists 3 normal and 3 abnormal images, not 4 of each"):
        read_lists(folder, domains, ["Brain"], [4])
    with pytest.raises(SettingsError, match="zero-shot has no supports"):
        read_lists(folder, domains, ["Brain"], [0])


def test_a_study_keeps_to_its_lists(domains, folder):
    lists = read_lists(folder, domains, ["Brain"], [2])
    study = plan_study("components", resolve_settings(), ["Brain"], [2], [0], lists=lists)
    assert all(cell.supports for cell in study.cells)
    assert study.base["supports"] == "listed"


def test_tables_say_whose_supports_they_are(domains, folder):
    def rows(cells):
        content = {"metrics": {"image_auroc": 0.7}, "counts": {"normal": 2, "abnormal": 2}}
        return [result_cell(c.method, {"cell": c.as_json(), **content}) for c in cells]

    def notes(table):
        return " ".join(text for _, text in footnotes(table))

    drawn, listed = plan(), plan(read_lists(folder, domains, ["Brain", "Chest"], [2]))
    ours, given = "drawn by our own rule and differ from those of the paper", "(--supports)"
    assert ours in notes(few_shot_table(rows(drawn), 2))
    assert given not in notes(few_shot_table(rows(drawn), 2))
    assert ours not in notes(own_table(rows(drawn)))  # nothing of the paper stands there
    assert ours not in notes(few_shot_table(rows(listed), 2))
    assert given in notes(few_shot_table(rows(listed), 2))
    assert ours not in notes(zero_shot_table(rows(plan(shots=(0,)))))
    assert ours not in notes(few_shot_table([], 2))
    with pytest.raises(InputError, match=r"supports: drawn and normal \(valid/good/img/"):
        few_shot_table(rows([drawn[0], listed[2]]), 2)
