from pathlib import Path

import pytest

from recap.data.manifest import manifest_samples, read_manifest
from recap.errors import InputError
from recap.types import Sample


def write(root: Path, *lines: str, touch: str = "", encoding: str = "utf-8") -> Path:
    for name in touch.split():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).touch()
    file = root / "set.csv"
    file.write_bytes("\n".join(lines).encode(encoding))
    return file


def test_all_columns_in_any_order(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        " Split ,PATIENT,remark,label,mask,Path",
        "test,p1,x,abnormal,m/a.png,i/a.png",
        'pool,p2,"x, y",normal,,i/b.png',
        ",p3,,1,,i/c.png",
        "train,,,0,,i/d.png",
        "valid,,,Ungood,m/e.png,i/e.png",
        "test,,,Good,m/f.png,i/f.png",
        ",,,,,",
        touch="i/a.png i/b.png i/c.png i/d.png i/e.png i/f.png m/a.png m/e.png",
    )
    image, mask = tmp_path / "i", tmp_path / "m"
    assert manifest_samples(file, "pool", "Knee") == [
        Sample(image / "b.png", False, None, "Knee", "p2"),
        Sample(image / "c.png", True, None, "Knee", "p3"),
        Sample(image / "e.png", True, mask / "e.png", "Knee", ""),
    ]
    assert manifest_samples(file, "test", "Knee") == [
        Sample(image / "f.png", False, None, "Knee", ""),
        Sample(image / "a.png", True, mask / "a.png", "Knee", "p1"),
    ]
    assert manifest_samples(file, "train") == [Sample(image / "d.png", False)]


@pytest.mark.parametrize(
    ("header", "row", "encoding"),
    [
        ("path;label", "ä b.png;normal", "utf-8"),
        ("path\tlabel", "ä b.png\tnormal", "utf-8-sig"),
        ("path,label,mask", "ä b.png,normal", "utf-8-sig"),
    ],
)
def test_spreadsheets(tmp_path: Path, header: str, row: str, encoding: str) -> None:
    (tmp_path / "ä b.png").touch()
    file = write(tmp_path, header, row, encoding=encoding)
    assert [s.path.name for s in manifest_samples(file, "pool")] == ["ä b.png"]


def test_absolute_paths(tmp_path: Path) -> None:
    (tmp_path / "far.png").touch()
    (tmp_path / "near").mkdir()
    file = write(tmp_path / "near", "path,label", f"{tmp_path / 'far.png'},0", "../far.png,0")
    assert len(manifest_samples(file, "pool")) == 2


@pytest.mark.parametrize(
    ("header", "missing"),
    [
        ("file,class", "columns path and label are missing; its first line has file, class"),
        ("path,mask", "column label is missing"),
        ("", "columns path and label are missing"),
        ("path,label,PATH", "column path is there twice"),
    ],
)
def test_wrong_columns_are_named(tmp_path: Path, header: str, missing: str) -> None:
    with pytest.raises(InputError, match=missing) as caught:
        read_manifest(write(tmp_path, header, "a.png,normal"))
    assert "set.csv" in str(caught.value)


def test_every_wrong_row_is_listed(tmp_path: Path) -> None:
    file = write(
        tmp_path,
        "path,label,split",
        "a.png,normal,pool",
        "a.png,abnormal,test",
        "b.png,sick,",
        "c.png,1,later",
        ",normal,",
        "d.png,abnormal,train",
        "gone.png,normal,",
        touch="a.png b.png c.png d.png",
    )
    manifest = read_manifest(file)
    starts = [row.split(":")[0] for row in manifest.wrong_rows]
    assert starts == [f"line {number}" for number in (3, 4, 5, 6, 7)]
    words = ["before", "'sick'", "'later'", "empty", "pool"]
    for row, word in zip(manifest.wrong_rows, words, strict=True):
        assert word in row
    assert manifest.missing == [tmp_path / "gone.png"]
    assert [s.path.name for s in manifest.samples["pool"]] == ["a.png"]
    with pytest.raises(InputError, match=r"line 3: .* \(and 4 more\)"):
        manifest_samples(file, "pool")


def test_missing_files_and_splits(tmp_path: Path) -> None:
    file = write(tmp_path, "path,label,mask", "a.png,1,gone.png", touch="a.png")
    with pytest.raises(InputError, match=r"1 of its files do not exist \(gone\.png\)"):
        manifest_samples(file, "pool")
    file = write(tmp_path, "path,label", "a.png,1")
    with pytest.raises(InputError, match="'test' into the split column"):
        manifest_samples(file, "test")


@pytest.mark.parametrize("content", [b"path,label\n\xff\xfe,0", b'path,label\n"a"b,0', b"\x00\x01"])
def test_what_is_no_csv(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "set.csv").write_bytes(content)
    with pytest.raises(InputError, match=r"set\.csv"):
        read_manifest(tmp_path / "set.csv")
