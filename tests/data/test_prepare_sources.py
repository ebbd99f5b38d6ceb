"""Every raw source, on small trees in its true formats."""

import json
import re
import shutil

import numpy as np
import pytest
from PIL import Image as PillowImage

import raw_trees
from killed_run import prepare_and_die
from recap.data import read_domain, read_support
from recap.data.prepare import PrepareOptions, find_source, prepare
from recap.errors import InputError, SettingsError
from toy_source import tree

TREES = {
    "brainmri": raw_trees.brats_tree,
    "liverct": raw_trees.liver_tree,
    "resc": raw_trees.resc_tree,
    "oct17": raw_trees.oct_tree,
    "chest": raw_trees.chest_tree,
}
# LiTS has ten volumes in the benchmark, three in the small tree.
LIMITS = {"liverct": 3}
UUID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
PUBLISHED_NAMES = {
    "brainmri": (r"\d{5}_\d{2}\.png", r"\d{5}_\d{2}\.png"),
    "liverct": (r"\d+_\d+\.png", r"\d+_\d+\.png"),
    "resc": (r"\d+_\d+\.png", r"\d+_\d+\.png"),
    "oct17": (r"NORMAL-\d+-\d+\.jpeg", r"(CNV|DME|DRUSEN)-\d+-\d+\.jpeg"),
    "chest": (rf"Normal-{UUID}\.png", rf"(Lung_Opacity|No-Not-Normal)_{UUID}\.png"),
}
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore:Invalid value for VR UI"),
]


@pytest.fixture(scope="session")
def raws(tmp_path_factory):
    """The small raw trees; not to be changed."""
    root = tmp_path_factory.mktemp("raw")
    return {name: make(root / name) for name, make in TREES.items()}


@pytest.fixture
def run(raws, tmp_path):
    def run(name, raw=None, to="out", workers=1, **options):
        chosen = PrepareOptions(**{"limit": LIMITS.get(name), **options})
        return prepare(find_source(name), raw or raws[name], tmp_path / to, chosen, workers)

    return run


def images(folder, split, label):
    return {path.name for path in (folder / split / label / "img").glob("*")}


def pixels(path):
    return np.asarray(PillowImage.open(path))


@pytest.mark.parametrize("name", TREES)
def test_twice_and_killed_half_way_gives_the_same_bytes(run, raws, tmp_path, name):
    first = run(name, to="a")
    run(name, to="b")
    half = (first.made + 1) // 2
    options = json.dumps({"limit": LIMITS.get(name)})
    module = f"recap.data.prepare.{name}"
    prepare_and_die(module, raws[name], tmp_path / "c", after=half, options=options)
    assert not list((tmp_path / "c").rglob("manifest.json"))
    resumed = run(name, to="c")
    assert resumed.reused == half
    assert first.errors == ()
    assert tree(tmp_path / "a") == tree(tmp_path / "b") == tree(tmp_path / "c")


@pytest.mark.slow
@pytest.mark.parametrize("name", TREES)
def test_workers_change_nothing(run, tmp_path, name):
    run(name, to="a")
    run(name, to="b", workers=2)
    assert tree(tmp_path / "a") == tree(tmp_path / "b")


@pytest.mark.parametrize("name", TREES)
def test_the_result_is_a_domain_with_published_names(run, name):
    folder = run(name).folder
    domain = read_domain(folder)
    patterns = PUBLISHED_NAMES[name]
    for samples in (domain.pool(), domain.test()):
        assert {sample.abnormal for sample in samples} == {False, True}
        for sample in samples:
            assert re.fullmatch(patterns[sample.abnormal], sample.path.name)
            has_mask = name in ("brainmri", "liverct", "resc") and sample.abnormal
            assert (sample.mask is not None) == has_mask
            if sample.mask is not None:
                assert {*np.unique(pixels(sample.mask))} == {0, 255}
                assert pixels(sample.mask).shape == pixels(sample.path).shape
    assert images(folder, "train", "good")


@pytest.mark.parametrize("name", TREES)
def test_published_lists_read_against_the_pool(run, tmp_path, name):
    default = run(name, to="a").folder
    normal, abnormal = (sorted(images(default, "test", label))[:2] for label in ("good", "Ungood"))
    if name == "brainmri":  # the pool has one normal slice of a patient, and slices 60, 70, …
        normal, abnormal = normal[:1], [f"{abnormal[0][:5]}_70.png"]
    options = {"pool_normal": tuple(normal), "pool_abnormal": tuple(abnormal)}
    domain = read_domain(run(name, to="b", **options).folder)
    file = tmp_path / "2-shot.txt"
    file.write_text(f"n-0: {' '.join(normal)}\na-0: {' '.join(abnormal)}")
    support = read_support(domain, file)
    assert [sample.path.name for sample in support.normal] == normal
    if name != "brainmri":
        assert not {*normal, *abnormal} & {sample.path.name for sample in domain.test()}


PATIENT = {
    "brainmri": lambda name: name.split("_")[0],
    "liverct": lambda name: name.split("_")[0],
    "oct17": lambda name: name.split("-")[1],
    "chest": lambda name: name,
}


@pytest.mark.parametrize("name", PATIENT)
def test_patient_split(run, name):
    summary = run(name, patient_split=True)
    folder = summary.folder
    pool, test = (
        {PATIENT[name](file) for kind in ("good", "Ungood") for file in images(folder, split, kind)}
        for split in ("valid", "test")
    )
    assert pool
    assert test
    assert not pool & test
    assert not any("--patient-split" in caveat for caveat in summary.caveats)
    if name in ("brainmri", "oct17"):
        train = {PATIENT[name](file) for file in images(folder, "train", "good")}
        assert not train & (pool | test)


def test_patient_split_of_resc_counts_both_eyes(run):
    summary = run("resc", patient_split=True)
    pool = {name.split("_")[0] for name in images(summary.folder, "valid", "Ungood")}
    test = {name.split("_")[0] for name in images(summary.folder, "test", "Ungood")}
    assert pool | test == {"1", "2", "3"}
    assert not pool & test
    # The first training volume is the other eye of a validation patient.
    assert {name.split("_")[0] for name in images(summary.folder, "train", "good")} == {"2"}
    assert "PC011" in summary.skipped[0].key


def test_the_published_rule_shares_patients_and_says_so(run):
    for name, word in (("brainmri", "slices"), ("liverct", "volumes"), ("resc", "volumes")):
        caveat = run(name).caveats[0]
        assert word in caveat
        assert "--patient-split" in caveat


def test_brain_slices_as_published(run, raws):
    folder = run("brainmri").folder
    test = {f"{p:05d}_{n}.png" for p in range(6) for n in (60, 68, 76, 84, 92)}
    assert images(folder, "test", "Ungood") == test
    (patient,) = {name[:5] for name in images(folder, "valid", "Ungood")}
    assert images(folder, "valid", "Ungood") == {f"{patient}_{n}.png" for n in (60, 70, 80, 90)}
    assert {name[6:] for name in images(folder, "valid", "good")} == {"60.png"}
    normal = {name[6:8] for name in images(folder, "train", "good")}
    assert normal == {"60", "61", "62", "63", "97", "98", "99"}


def test_brain_pixels_stand_where_radiologists_expect_them(run, raws):
    import nibabel

    folder = run("brainmri").folder
    source = raws["brainmri"] / "BraTS2021_00003/BraTS2021_00003"
    flair = np.asarray(nibabel.load(f"{source}_flair.nii.gz").dataobj).astype(float)
    seg = np.asarray(nibabel.load(f"{source}_seg.nii.gz").dataobj)
    white = np.percentile(flair[flair > 0], 99.5)
    # Stored columns run to the left and rows to the back already, as on the screen.
    expected = np.rint(np.clip(flair[:, :, 68].T / white, 0, 1) * 255)
    shown = pixels(folder / "test/Ungood/img/00003_68.png")
    assert np.abs(shown - expected).max() <= 1
    mask = pixels(folder / "test/Ungood/anomaly_mask/00003_68.png")
    assert np.array_equal(mask > 0, seg[:, :, 68].T > 0)


def test_liver_slices_keep_their_stored_numbers(run, raws):
    import nibabel

    folder = run("liverct").folder
    file = raws["liverct"] / "LiTS/volume_pt1/volume-2.nii"  # stored from the head down
    stored = np.asarray(nibabel.load(file).dataobj).astype(float)
    split = "test" if (folder / "test/Ungood/img/2_12.png").exists() else "valid"
    shown = pixels(folder / split / "Ungood/img/2_12.png")
    # This affine's columns run to the right and rows to the front: both are turned.
    expected = np.rint(np.clip((stored[::-1, ::-1, 12].T + 160) / 400, 0, 1) * 255)
    assert np.abs(shown - expected).max() <= 1
    test, pool = images(folder, "test", "Ungood"), images(folder, "valid", "Ungood")
    assert test | pool == {f"{v}_{n}.png" for v in (1, 2, 3) for n in range(10, 20)}
    assert (len(test & pool), len(pool)) == (0, 3)
    assert images(folder, "train", "good") == {f"{v}_{n}.png" for v in (1, 2) for n in (8, 9, 10)}


def test_liver_only(run):
    folder = run("liverct", organ_only=True).folder
    shown = pixels(next((folder / "train/good/img").glob("*.png")))
    assert not shown[:2].any()
    assert shown.any()


def test_resc_takes_every_twelfth_abnormal_scan_of_a_volume(run):
    folder = run("resc").folder
    assert images(folder, "valid", "Ungood") == {f"{v}_{n}.png" for v in (1, 2, 3) for n in (8, 20)}
    in_step = run("resc", to="b", pool_abnormal=("2_9.png",)).folder
    assert images(in_step, "valid", "Ungood") >= {"2_9.png", "2_21.png", "1_8.png"}
    assert "2_8.png" in images(in_step, "test", "Ungood")


def test_chest_keeps_every_grey_value(run):
    folder = run("chest").folder
    stored = {raw_trees.uuid(seed): raw_trees.noise(seed, (18, 20)) for seed in range(15)}
    for path in folder.rglob("*.png"):
        assert np.array_equal(pixels(path), stored[path.stem[-36:]])


def test_oct_files_are_kept_byte_for_byte(run, raws):
    folder = run("oct17").folder
    raw = raws["oct17"] / "OCT2017"
    assert images(folder, "valid", "good") == {p.name for p in (raw / "val/NORMAL").iterdir()}
    for name in images(folder, "test", "Ungood"):
        kept = (folder / "test/Ungood/img" / name).read_bytes()
        assert kept == (raw / "test" / name.split("-")[0] / name).read_bytes()


def test_oct_without_val_takes_the_pool_out_of_test(run, tmp_path):
    raw = raw_trees.oct_tree(tmp_path / "raw", val=False)
    folder = run("oct17", raw=raw, train=False).folder
    for label, count in (("good", 3), ("Ungood", 9)):
        pool, test = (images(folder, split, label) for split in ("valid", "test"))
        assert (len(pool), len(test), pool & test) == (count, count, set())
    assert not (folder / "train").exists()


@pytest.mark.parametrize("name", TREES)
def test_raw_data_may_be_linked(raws, tmp_path, name):
    parts, whole = tmp_path / "parts", tmp_path / "whole"
    parts.mkdir()
    whole.mkdir()
    for path in raws[name].iterdir():
        (parts / path.name).symlink_to(path)
    (whole / "link").symlink_to(raws[name])
    plain = plan_of(name, raws[name])
    assert plan_of(name, parts) == plan_of(name, whole) == plain
    assert plain != ([], [])


def plan_of(name, raw):
    """The keys of what is to be looked at and made."""
    plan = find_source(name).plan(raw, PrepareOptions(limit=LIMITS.get(name)))
    return [probe.key for probe in plan.probes], [item.key for item in plan.items]


def damage(raw, pattern, keep):
    path = sorted(raw.rglob(pattern))[0]
    path.write_bytes(path.read_bytes()[:keep]) if keep else path.unlink()
    return path


@pytest.mark.parametrize(
    ("name", "pattern", "keep", "reason"),
    [
        ("brainmri", "*_flair.nii.gz", 5000, "_flair.nii.gz: "),
        ("brainmri", "*_seg.nii.gz", 0, "its labels file is missing"),
        ("liverct", "segmentation-*.nii", 900, "ends too early"),
        ("liverct", "volume-*.nii", 0, "its image file is missing"),
        ("liverct", "label*.nii.gz", 0, "its labels file is missing"),
        ("resc", "*labelMark/7.bmp", 200, "damaged or incomplete"),
        ("resc", "*.img/7.bmp", 200, "damaged or incomplete"),
        ("oct17", "test/CNV/*.jpeg", 400, "damaged or incomplete"),
        ("chest", "*.dcm", 300, ".dcm"),
        ("chest", "*.dcm", 0, "is missing. Download it again."),
    ],
)
def test_one_broken_input_does_not_stop_the_rest(run, raws, tmp_path, name, pattern, keep, reason):
    raw = tmp_path / "raw"
    shutil.copytree(raws[name], raw)
    damage(raw, pattern, keep)
    whole, summary = run(name, to="a"), run(name, raw=raw, to="b")
    assert len(summary.errors) == 1
    assert reason in summary.errors[0].reason
    assert str(tmp_path) not in summary.manifest.read_text()
    assert (
        json.loads(summary.manifest.read_text())["errors"][0]["reason"] == summary.errors[0].reason
    )
    assert sum(summary.counts.values()) > sum(whole.counts.values()) * 0.6
    assert tree(summary.folder).keys() > {"manifest.json"}


@pytest.mark.parametrize("name", TREES)
def test_a_wrong_folder_shows_the_expected_one(name, tmp_path):
    (tmp_path / "raw").mkdir()
    source = find_source(name)
    with pytest.raises(InputError) as caught:
        prepare(source, tmp_path / "raw", tmp_path / "out")
    assert source.expected in str(caught.value)
    assert source.describe in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_sources_by_name():
    with pytest.raises(SettingsError, match="No source is called 'mri'"):
        find_source("mri")
