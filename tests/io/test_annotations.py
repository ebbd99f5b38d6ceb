"""Outlines on slides: what is read, what is refused, and which pixels they cover."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recap.errors import InputError
from recap.io import annotations
from recap.io.annotations import Polygon, rasterise, read_annotations
from recap.types import Geometry
from slide_files import write_annotations

SQUARE = [(10, 20), (10, 60), (50, 60), (50, 20)]


def xml(tmp_path, body, head=""):
    path = tmp_path / "tumor_001.xml"
    path.write_text(f'<?xml version="1.0"?>{head}{body}', encoding="utf-8")
    return path


def one(points, attributes='PartOfGroup="Tumor"'):
    inside = "".join(points)
    return (
        f"<ASAP_Annotations><Annotations><Annotation {attributes}><Coordinates>{inside}"
        "</Coordinates></Annotation></Annotations></ASAP_Annotations>"
    )


def point(x, y, order=None):
    return (
        f'<Coordinate X="{x}" Y="{y}"' + (f' Order="{order}"' if order is not None else "") + "/>"
    )


def contains(points, row, column):
    """The textbook's ray to the right, one edge after the other."""
    inside = False
    for (r1, c1), (r2, c2) in zip(points, [*points[1:], points[0]], strict=True):
        if (r1 <= row) != (r2 <= row) and column >= c1 + (row - r1) * (c2 - c1) / (r2 - r1):
            inside = not inside
    return inside


def slow(polygons, origin, step, size_hw):
    wanted = np.zeros(size_hw, dtype=bool)
    for row, column in np.ndindex(size_hw):
        y, x = origin[0] + (row + 0.5) * step, origin[1] + (column + 0.5) * step
        found = [polygon.hole for polygon in polygons if contains(polygon.points.tolist(), y, x)]
        wanted[row, column] = bool(found) and not any(found)
    return wanted


# Half pixels and steps that are powers of two hit centres exactly; elsewhere rounding decides what
# lies on an edge, and two right answers differ.
coordinate = st.integers(-30, 90).map(lambda halves: halves / 2)
outline = st.lists(st.tuples(coordinate, coordinate), min_size=3, max_size=9)


@settings(deadline=None)
@given(
    drawn=st.lists(st.tuples(outline, st.booleans()), min_size=1, max_size=4),
    origin=st.tuples(st.integers(-5, 20), st.integers(-5, 20)),
    step=st.sampled_from([0.5, 1.0, 2.0, 4.0]),
)
def test_filling_is_the_slow_loop(drawn, origin, step):
    polygons = [Polygon(np.array(points, dtype=float), hole) for points, hole in drawn]
    size = (13, 17)
    assert np.array_equal(
        rasterise(polygons, origin, step, size), slow(polygons, origin, step, size)
    )


def test_filling_in_small_portions_is_the_same(monkeypatch):
    turn = np.linspace(0, 40, 200)
    points = np.stack([50 + turn * np.sin(turn), 50 + turn * np.cos(turn)], axis=1)
    whole = rasterise([Polygon(points)], (0, 0), 1.0, (100, 100))
    monkeypatch.setattr(annotations, "CROSSINGS_AT_ONCE", 300)
    assert whole.any()
    assert np.array_equal(rasterise([Polygon(points)], (0, 0), 1.0, (100, 100)), whole)


def test_no_polygons_cover_nothing():
    assert not rasterise([], (0, 0), 2.0, (4, 5)).any()


def test_the_mask_lies_where_the_geometry_says():
    geometry = Geometry(origin_px=(7, 16), source_px_per_px=4.0)
    mask = rasterise([Polygon(np.array(SQUARE, float))], geometry.origin_px, 4.0, (16, 16))
    rows, columns = np.nonzero(mask)
    top, left = geometry.to_source_px(rows.min(), columns.min())
    bottom, right = geometry.to_source_px(rows.max(), columns.max())
    assert np.allclose((top, left, bottom, right), (12.5, 21.5, 48.5, 57.5))


@pytest.mark.parametrize(
    ("group", "hole"),
    [
        *[(group, False) for group in ("Tumor", "_0", "_1", "None", "metastases")],
        *[(group, True) for group in ("_2", "Exclusion", "normal")],
    ],
)
def test_groups_of_camelyon(tmp_path, group, hole):
    (polygon,) = read_annotations(write_annotations(tmp_path / "a.xml", [(group, SQUARE)]))
    assert polygon.hole == hole
    assert np.array_equal(polygon.points, SQUARE)


def test_a_group_in_a_group_counts_as_that(tmp_path):
    body = one([point(0, 0), point(9, 0), point(9, 9)], 'PartOfGroup="fat"').replace(
        "</ASAP",
        '<AnnotationGroups><Group Name="fat" PartOfGroup="_2"/><Group Name="_2" PartOfGroup="fat"/>'
        "</AnnotationGroups></ASAP",
    )
    assert read_annotations(xml(tmp_path, body))[0].hole


def test_missing_attributes_and_shuffled_points(tmp_path):
    points = [point(9, 9, 2), point(0, 0, 0), point(9, 0, 1)]
    assert read_annotations(xml(tmp_path, one(points)))[0].points.tolist() == [
        [0, 0],
        [0, 9],
        [9, 9],
    ]
    bare = read_annotations(xml(tmp_path, one([point(1, 2), point(3, 4), point(6, 5)], "")))
    assert bare[0].points.tolist() == [[2, 1], [4, 3], [5, 6]]
    assert not bare[0].hole


def test_what_has_no_area_is_left_out(tmp_path):
    assert read_annotations(xml(tmp_path, one([point(1, 1), point(2, 2)]))) == []
    three = [point(1, 1), point(2, 2), point(3, 1)]
    assert read_annotations(xml(tmp_path, one(three, 'Type="PointSet"'))) == []
    assert len(read_annotations(xml(tmp_path, one(three, 'Type="Spline"')))) == 1


LAUGHS = (
    '<!DOCTYPE lolz [<!ENTITY a "ha"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;&a;&a;">'
    '<!ENTITY c "&b;&b;&b;&b;&b;&b;&b;&b;&b;&b;">]>'
)
OUTSIDE = '<!DOCTYPE x [<!ENTITY file SYSTEM "file:///etc/hostname">]>'


@pytest.mark.parametrize("head", [LAUGHS, OUTSIDE, '<!DOCTYPE x SYSTEM "http://localhost/x.dtd">'])
def test_document_types_are_refused(tmp_path, head):
    with pytest.raises(InputError, match="document type"):
        read_annotations(xml(tmp_path, "<ASAP_Annotations>&c;&file;</ASAP_Annotations>", head))


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("", "not XML"),
        ("<ASAP_Annotations>", "not XML"),
        ("<ASAP_Annotations>&undefined;</ASAP_Annotations>", "not XML"),
        ("<html/>", "<html>"),
        (one(['<Coordinate X="1"/>']), "no place"),
        (one([point("nan", 1)]), "no place"),
        (one([point("1e300", 1)]), "no place"),
        (one([point(1, "one")]), "no place"),
    ],
)
def test_bad_files_say_what_is_wrong(tmp_path, body, said):
    with pytest.raises(InputError, match=said) as caught:
        read_annotations(xml(tmp_path, body))
    assert "tumor_001.xml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_missing_and_oversized_files(tmp_path, monkeypatch):
    with pytest.raises(InputError, match="cannot be read"):
        read_annotations(tmp_path / "none.xml")
    monkeypatch.setattr(annotations, "MAX_BYTES", 10)
    with pytest.raises(InputError, match="larger"):
        read_annotations(write_annotations(tmp_path / "a.xml", [("Tumor", SQUARE)]))
    path = tmp_path / "odd.xml"
    monkeypatch.setattr(annotations, "MAX_BYTES", 2**20)
    path.write_bytes(b'<?xml version="1.0" encoding="nonsense"?><ASAP_Annotations/>')
    with pytest.raises(InputError, match="not XML"):
        read_annotations(path)
