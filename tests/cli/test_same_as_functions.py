"""Commands and the functions of the same names give the same bytes."""

import json

import recap


def contents(folder):
    """Every file but the manifest, which holds times."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != "manifest.json")
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}


def test_score(command, bundle, domains, tmp_path):
    images = domains[0].root / "test"
    assert command("score", bundle, images, "--out", tmp_path / "one", "--report").code == 0
    (result,) = recap.score_folder(bundle, images, tmp_path / "two", report=True)
    one, two = contents(tmp_path / "one"), contents(tmp_path / "two")
    page = one.pop("report.html"), two.pop("report.html")
    assert one == two
    assert "scores.csv" in one
    assert all(page)
    assert [row.status for row in result.rows] == ["ok"] * len(result.rows)
    manifests = [
        json.loads((tmp_path / run / "manifest.json").read_text()) for run in ("one", "two")
    ]
    for manifest in manifests:
        for name in ("seconds", "stages", "started_unix"):
            del manifest[name]
    assert manifests[0] == manifests[1]


def test_calibrate_and_evaluate(command, bundle, domains, tmp_path):
    normal = domains[0].root / "test" / "good" / "img"
    options = ["--normal", normal, "--fpr", "0.4", "--out", tmp_path / "one.recap"]
    assert command("calibrate", bundle, *options).code == 0
    found = recap.calibrate(bundle, normal, fpr=0.4)
    found.detector.save(tmp_path / "two.recap", keep=bundle)
    assert contents(tmp_path / "one.recap") == contents(tmp_path / "two.recap")
    measured = tmp_path / "measured.json"
    assert command("evaluate", bundle, domains[0].root, "--json", measured).code == 0
    expected = json.dumps(recap.evaluate(bundle, domains[0].root), indent=2) + "\n"
    assert measured.read_text() == expected
