import os
from pathlib import Path

import pytest

from recap.data.patients import listed_patient, patient_of, slice_of

UUID = "ff04a17a-9514-481c-985f-13e09944cfd0"


@pytest.mark.parametrize(
    ("name", "domain", "patient", "number"),
    [
        ("01471_60.png", "Brain", "01471", 60),
        ("01471_60.png", "BrainMRI", "01471", 60),
        ("BraTS2021_01471_60.png", "Brain", "BraTS2021_01471", 60),
        ("BraTS2021_01471_flair_077.png", "Mine", "BraTS2021_01471", 77),
        ("BraTS20_Training_001_flair.png", "Brain", "BraTS20_Training_001", None),
        ("BraTS-GLI-00005-000-t2f_77.png", "Brain", "BraTS_GLI_00005", 77),
        ("TCGA_FG_A4MU_20030903_028.png", "Brain", "TCGA_FG_A4MU", 28),
        ("TCGA-FG-A4MU-01Z-00-DX1.png", "Histopathology", "TCGA_FG_A4MU", None),
        ("4_487.png", "Liver", "4", 487),
        ("volume-4_487.png", "Liver_AD", "4", 487),
        ("9_28.png", "Retina_RESC", "9", 28),
        ("CNV-6294785-1.jpeg", "Retina_OCT2017", "6294785", 1),
        ("NORMAL-24500-13.png", "Retina_OCT2017", "24500", 13),
        (f"Normal-{UUID}.png", "Chest", UUID.replace("-", "_"), None),
        (f"No-Not-Normal_{UUID}.png", "Chest", UUID.replace("-", "_"), None),
        (f"{UUID}.dcm", "Mine", UUID.replace("-", "_"), None),
        ("00001682_001.png", "Chest", "00001682", None),
        ("10688_x016_y304.png", "Histopathology", "10688", None),
        ("tumor_001_x12_y3.png", "Histopathology", "tumor_001", None),
        ("1103.png", "Histopathology", "", None),
        ("4_487.png", "Mine", "", None),
        ("00001682_001.png", "Mine", "", None),
        ("img_001.png", "Brain", "", None),
        ("valid_000.png", "Liver", "", None),
    ],
)
def test_names_of_the_benchmark(name, domain, patient, number):
    path = Path("nowhere") / "test" / "good" / "img" / name
    assert patient_of(path, domain) == patient
    assert slice_of(path, domain) == number


@pytest.fixture
def indexed(tmp_path):
    def write(text, name="index.csv"):
        (tmp_path / "Brain_AD").mkdir(exist_ok=True)
        (tmp_path / "Brain_AD" / name).write_text(text, encoding="utf-8")
        return tmp_path / "Brain_AD"

    return write


def test_the_index_wins_over_the_name(indexed):
    root = indexed("split,label,file,patient_or_source_id\ntest,good,01471_60.png,anna\n")
    assert patient_of(root / "test/good/img/01471_60.png", "Brain") == "anna"
    assert patient_of(root / "test/good/img/01472_60.png", "Brain") == "01472"


def test_one_name_in_several_folders(indexed):
    rows = ["train,good,a", "train,Ungood,b", "test,good,c", "test,Ungood,d"]
    lines = [f"{row[:-2]},1_1.png,{row[-1]}" for row in rows]
    root = indexed("\n".join(["split,label,file,patient", *lines]))
    folders = ["valid/good", "valid/Ungood", "test/good", "test/Ungood"]
    assert [listed_patient(root / f / "img/1_1.png") for f in folders] == ["a", "b", "c", "d"]


def test_a_listing_by_path_or_by_name_alone(indexed):
    root = indexed("Path,Patient\ntest/good/img/x.png,p1\ny.png,p2\n", "manifest.csv")
    assert listed_patient(root / "test/good/img/x.png") == "p1"
    assert listed_patient(root / "valid/good/img/x.png") == ""
    assert listed_patient(root / "valid/good/y.png") == "p2"


@pytest.mark.parametrize(("healthy", "diseased"), [("normal", "abnormal"), ("0", "1")])
@pytest.mark.parametrize("folders", [("normal", "abnormal"), ("test/good/img", "test/Ungood/img")])
def test_labels_in_other_words_and_semicolons(indexed, healthy, diseased, folders):
    root = indexed(f"file;label;patient\nx.png;{healthy};anna\nx.png;{diseased};berta\n")
    assert [listed_patient(root / folder / "x.png") for folder in folders] == ["anna", "berta"]


def test_where_the_folder_tells_nothing_a_name_must_be_unique(indexed):
    lines = ["split,label,file,patient", "test,1,x.png,anna", "pool,0,y.png,a", "test,0,y.png,b"]
    root = indexed("\n".join([*lines, "test,glioma,z.png,clara"]))
    assert listed_patient(root / "x.png") == listed_patient(root / "images/x.png") == "anna"
    assert listed_patient(root / "y.png") == ""
    assert listed_patient(root / "test/Ungood/img/z.png") == "clara"
    assert listed_patient(root / "test/good/img/x.png") == ""


def test_an_index_that_has_train_and_the_pool(indexed):
    root = indexed("split,file,patient\ntrain,x.png,a\nvalid,x.png,b\ntrain,y.png,c\n")
    places = ["train/good/img/x.png", "valid/good/img/x.png", "valid/good/img/y.png"]
    assert [listed_patient(root / place) for place in places] == ["a", "b", "c"]


def test_a_table_about_something_else_is_no_index(indexed):
    root = indexed("file,size\n01471_60.png,3\n")
    assert patient_of(root / "test/good/img/01471_60.png", "Brain") == "01471"


def test_a_changed_index_is_read_again(indexed):
    path = indexed("file,patient\n1_1.png,old\n") / "test/good/img/1_1.png"
    assert listed_patient(path) == "old"
    os.utime(indexed("file,patient\n1_1.png,new\n") / "index.csv", ns=(1, 1))
    assert listed_patient(path) == "new"
