"""On data of the original size, the rules give the published numbers of images."""

from collections import Counter
from pathlib import Path

from recap.data.prepare import PrepareOptions, brainmri, chest, resc
from recap.data.prepare.plan import Pair

OPTIONS = PrepareOptions()


def test_brain():
    full, mixed = [*range(60, 100)], [*range(60, 78)]
    facts = {
        f"{number:05d}": {"tumour": full, "normal": []}
        if number < 700
        else {"tumour": full[18:], "normal": mixed}
        for number in range(1251)
    }
    pairs = tuple(Pair(patient, Path("flair"), Path("seg")) for patient in facts)
    plan = brainmri._choose(pairs, facts, OPTIONS)
    cuts = Counter((c.split, c.abnormal) for item in plan.items for c in item.work.args[3])
    assert cuts == {
        ("test", True): 3075,
        ("test", False): 640,
        ("valid", True): 44,
        ("valid", False): 39,
        ("train", False): 7500,
    }


def test_chest():
    sizes = {"Normal": 8851, "Lung Opacity": 6012, "No Lung Opacity / Not Normal": 11821}
    places = Counter()
    for kind, size in sizes.items():
        ids = [f"{kind}{number}" for number in range(size)]
        items = chest._items(kind, ids, Path("raw"), OPTIONS)
        places.update(item.work.args[1] for item in items)
    assert places == {"train": 8000, "valid": 1490, "test": 17194}


def test_resc():
    # 764 of the 1,805 test scans are abnormal; lesions fill the middle of a volume.
    scans, facts = [], {}
    for volume in range(1, 16):
        for number in range(1, 129):
            scan = resc.Scan(f"{volume}/{number}", Path("i"), Path("l"), False, "P", volume, number)
            scans.append(scan)
            facts[scan.key] = 40 <= number < 96
    plan = resc._choose(scans, facts, OPTIONS)
    places = Counter(item.work.args[3] for item in plan.items)
    assert places["valid"] + places["test"] == 1920
    assert abs(places["valid"] - 115) <= 10  # where each volume's lesions end is not public
