"""Uploads that must be refused: cut off, lying about their size, of a wrong kind, or crafted."""

import gzip
import io
import pickle
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
from whole_files import made_nifti, made_nrrd, made_pictures

MARK = "recap-hostile"
"""Part of every name that could show up where it should not."""
BOUNDARY = b"hostile-boundary"
MULTIPART = f"multipart/form-data; boundary={BOUNDARY.decode()}"
NAMES = (
    "scan.png",
    "scan.dcm",
    "scan.nii.gz",
    f"../../../../../../tmp/{MARK}.png",
    f"/tmp/{MARK}.png",
    f"..\\..\\{MARK}.png",
    f"c:\\{MARK}.png",
    f"<script>alert('{MARK}')</script>.png",
    f'"><img src=x onerror=alert(1)>{MARK}.png',
    f"{MARK}'; DROP TABLE jobs; --.png",
    f"{MARK}\u202egnp.exe",
    f"$(touch {MARK}).png",
    f"{MARK}" + "a" * 3000 + ".png",
    ".htaccess",
    "..",
    "index.html",
    "\U0001f480.png",
)


@dataclass(frozen=True)
class Attack:
    """One request: its body as it stands on the wire, and what it is called."""

    kind: str
    body: bytes
    content_type: str


Rng = np.random.Generator
Make = Callable[[Rng], bytes]


def form(content: bytes, name: str, *more: bytes) -> bytes:
    """A form with one file."""
    escaped = name.encode("utf-8", "replace").replace(b'"', b"%22")
    head = b'Content-Disposition: form-data; name="file"; filename="' + escaped + b'"\r\n\r\n'
    parts = [b"--" + BOUNDARY + b"\r\n" + head + content + b"\r\n", *more]
    return b"".join(parts) + b"--" + BOUNDARY + b"--\r\n"


def attack(rng: Rng) -> Attack:
    """The next upload; the same generator gives the same ones."""
    if rng.random() < 0.1:
        kind, body, content_type = broken_form(rng)
        return Attack(kind, body, content_type or MULTIPART)
    make = _choose(rng, MAKES)
    name = str(_choose(rng, NAMES))
    return Attack(make.__name__.replace("_", " "), form(make(rng), name), MULTIPART)


def _choose(rng: Rng, among: tuple) -> object:  # type: ignore[type-arg]
    return among[int(rng.integers(len(among)))]


@cache
def _pictures() -> tuple[bytes, ...]:
    return tuple(data for files in made_pictures().values() for _, data in files)


@cache
def _volumes() -> tuple[bytes, ...]:
    nifti = [data for _, data in made_nifti()]
    packed = [gzip.compress(data, 1, mtime=0) for data in nifti]
    return (*nifti, *packed, *(data for _, data in made_nrrd()))


@cache
def _dicom(rows: int = 64, columns: int = 64, declared: tuple[int, int] | None = None) -> bytes:
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage, generate_uid

    dataset = Dataset()
    dataset.file_meta = FileMetaDataset()
    dataset.file_meta.TransferSyntaxUID = ExplicitVRLittleEndian
    dataset.file_meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    dataset.file_meta.MediaStorageSOPInstanceUID = generate_uid(entropy_srcs=["hostile"])
    dataset.SOPClassUID = SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = dataset.file_meta.MediaStorageSOPInstanceUID
    dataset.PatientName, dataset.Modality = f"{MARK}^<script>", "OT"
    dataset.Rows, dataset.Columns = declared or (rows, columns)
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 16
    dataset.HighBit, dataset.PixelRepresentation = 15, 0
    noise = np.random.default_rng(0).integers(0, 4096, rows * columns).astype("<u2")
    dataset.PixelData = noise.tobytes()
    dataset["PixelData"].VR = "OW"
    stream = io.BytesIO()
    dataset.save_as(stream, enforce_file_format=True)
    return stream.getvalue()


def _cut(data: bytes, rng: Rng, most: float = 0.8) -> bytes:
    return data[: int(rng.integers(1, max(2, int(most * len(data)))))]


def cut_picture(rng: Rng) -> bytes:
    return _cut(_choose(rng, _pictures()), rng)  # type: ignore[arg-type]


def cut_dicom(rng: Rng) -> bytes:
    return _cut(_dicom(), rng, 0.97)


def cut_volume(rng: Rng) -> bytes:
    return _cut(_choose(rng, _volumes()), rng)  # type: ignore[arg-type]


def huge_png(rng: Rng) -> bytes:
    """A PNG whose header, with a right checksum, declares far more pixels than are read."""
    side = int(rng.integers(20_000, 2**31 - 1))
    head = b"IHDR" + struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
    chunk = struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))
    body = b"IDAT" + zlib.compress(bytes(1000))
    data = struct.pack(">I", len(body) - 4) + body + struct.pack(">I", zlib.crc32(body))
    return b"\x89PNG\r\n\x1a\n" + chunk + data


def huge_bmp(rng: Rng) -> bytes:
    side = int(rng.integers(20_000, 2**31 - 1))
    head = struct.pack("<IiiHHIIiiII", 40, side, side, 1, 24, 0, 0, 0, 0, 0, 0)
    return b"BM" + struct.pack("<IHHI", 54, 0, 0, 54) + head + bytes(64)


def huge_dicom(rng: Rng) -> bytes:
    return _dicom(8, 8, (int(rng.integers(1000, 65535)), 65534))


def huge_nifti(rng: Rng) -> bytes:
    data = bytearray(_volumes()[0])
    sides = [int(rng.integers(2000, 32767)) for _ in range(3)]
    data[40:48] = struct.pack("<4h", 3, *sides)
    packed = bytes(data)
    return gzip.compress(packed, 1, mtime=0) if rng.random() < 0.5 else packed


def huge_nrrd(rng: Rng) -> bytes:
    side = int(rng.integers(2000, 10**9))
    head = f"NRRD0004\ntype: uint8\ndimension: 3\nsizes: {side} {side} {side}\nencoding: raw\n\n"
    return head.encode() + bytes(100)


def nrrd_elsewhere(rng: Rng) -> bytes:
    where = _choose(rng, ("/etc/passwd", "../../recap.sqlite3", "http://127.0.0.1/", "LIST"))
    head = (
        f"NRRD0004\ntype: uint8\ndimension: 3\nsizes: 4 4 4\nencoding: raw\ndata file: {where}\n\n"
    )
    return head.encode()


def random_dicom(rng: Rng) -> bytes:
    return bytes(128) + b"DICM" + rng.bytes(int(rng.integers(0, 4000)))


def wrong_kind(rng: Rng) -> bytes:
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w") as archive:
        info = tarfile.TarInfo(f"../{MARK}.png")
        info.size = 4
        archive.addfile(info, io.BytesIO(b"data"))
    kinds: tuple[bytes, ...] = (
        b"",
        b"\0",
        b"<html><script>alert(1)</script></html>",
        b"<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'/>",
        b"#!/bin/sh\ntouch /tmp/" + MARK.encode(),
        b"\x7fELF" + rng.bytes(300),
        b"MZ" + rng.bytes(300),
        b"%PDF-1.7\n" + rng.bytes(300),
        b"GIF89a" + rng.bytes(300),
        b"7z\xbc\xaf\x27\x1c" + rng.bytes(300),
        pickle.dumps({"a": 1}),
        b"\x93NUMPY" + rng.bytes(300),
        gzip.compress(b"text " * 100, mtime=0),
        tar.getvalue(),
        b"<?xml version='1.0'?><!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]><a>&b;</a>",
    )
    return _choose(rng, kinds)  # type: ignore[return-value]


def _zip(files: dict[str, bytes], packed: bool = False) -> bytearray:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED if packed else 0) as archive:
        for name, content in files.items():
            archive.writestr(zipfile.ZipInfo(name), content)
    return bytearray(stream.getvalue())


def zip_slip(rng: Rng) -> bytes:
    names = (
        f"../{MARK}.png",
        f"../../../../../../../../tmp/{MARK}.png",
        f"/tmp/{MARK}.png",
        f"a/../../{MARK}.png",
        f"..\\..\\{MARK}.png",
        f"C:\\{MARK}.png",
        f"\\\\host\\share\\{MARK}.png",
    )
    return bytes(_zip({"good.png": _pictures()[0], str(_choose(rng, names)): _pictures()[0]}))


def zip_link(rng: Rng) -> bytes:
    stream = io.BytesIO()
    kind = _choose(rng, (stat.S_IFLNK, stat.S_IFCHR, stat.S_IFIFO, stat.S_IFSOCK))
    with zipfile.ZipFile(stream, "w") as archive:
        link = zipfile.ZipInfo("a.png")
        link.external_attr = (kind | 0o777) << 16  # type: ignore[operator]
        archive.writestr(link, str(_choose(rng, ("/etc/passwd", "../../../recap.sqlite3"))))
    return stream.getvalue()


def nested_zip(rng: Rng) -> bytes:
    inner = bytes(_zip({"a.png": _pictures()[0]}))
    for _ in range(int(rng.integers(1, 5))):
        inner = bytes(_zip({str(_choose(rng, ("x.zip", "x.png", "x"))): inner}))
    return inner


@cache
def _zeros(count: int, size: int) -> bytes:
    block = bytes(size)
    return bytes(_zip({f"{n}.png": block for n in range(count)}, packed=True))


def zip_of_zeros(rng: Rng) -> bytes:
    """A true bomb: sixteen megabytes of zeros in a file of sixteen kilobytes; not an image."""
    return _zeros(2, 2**23)


def zip_that_lies(rng: Rng) -> bytes:
    """Sizes in the directory that are not those of the files."""
    data = _zip({f"{n}.png": _pictures()[n] for n in range(3)}, packed=True)
    at = 0
    size = int(_choose(rng, (2**32 - 2, 3 * 10**9)))  # type: ignore[call-overload]
    while (at := data.find(b"PK\x01\x02", at)) >= 0:
        data[at + 24 : at + 28] = struct.pack("<I", size)
        at += 4
    return bytes(data)


def zip_damaged(rng: Rng) -> bytes:
    data = _zip({"a.png": _pictures()[0]}, packed=True)
    way = int(rng.integers(3))
    if way == 0:
        return bytes(data[: int(rng.integers(5, len(data) - 1))])
    if way == 1:  # the content does not fit its checksum
        data[60 + int(rng.integers(200))] ^= 0xFF
        return bytes(data)
    at = data.find(b"PK\x01\x02")  # said to be encrypted
    data[at + 8] |= 1
    return bytes(data)


def zip_of_nothing(rng: Rng) -> bytes:
    files = {f"{MARK}.sh": b"#!/bin/sh", "x.html": b"<script>", ".hidden.png": b"x", "e.png": b""}
    names = list(files)[: int(rng.integers(1, 4))]
    return bytes(_zip({name: files[name] for name in names}))


def zip_of_many(rng: Rng) -> bytes:
    return _many()


@cache
def _many() -> bytes:
    return bytes(_zip({f"{n}.png": b"x" for n in range(5001)}))


def packed_bomb(rng: Rng) -> bytes:
    """A volume of zeros that is small on the wire and too large in memory."""
    return _packed_zeros()


@cache
def _packed_zeros() -> bytes:
    data = bytearray(_volumes()[0][:352])
    data[40:48] = struct.pack("<4h", 3, 1000, 1000, 1000)
    data[70:74] = struct.pack("<hh", 2, 8)
    stream = io.BytesIO()
    with gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=9, mtime=0) as packed:
        packed.write(data)
        for _ in range(1000):
            packed.write(bytes(10**6))
    return stream.getvalue()


def broken_form(rng: Rng) -> tuple[str, bytes, str]:
    """A request that is wrong before any file is looked at."""
    whole = form(_pictures()[0], "a.png")
    end = b"--" + BOUNDARY + b"--\r\n"
    field = b"--" + BOUNDARY + b'\r\nContent-Disposition: form-data; name="%s"\r\n\r\n%s\r\n'
    forms: tuple[tuple[bytes, str], ...] = (
        (whole[: int(rng.integers(1, len(whole) - 5))], ""),
        (rng.bytes(int(rng.integers(0, 3000))), ""),
        (whole, "application/json"),
        (whole, "multipart/form-data"),
        (whole, "multipart/form-data; boundary=" + "x" * 300),
        (whole, "text/plain"),
        (end, ""),
        (form(_pictures()[0], "a.png", field % (b"bundle", b"../../etc/passwd")), ""),
        (form(_pictures()[0], "a.png", field % (b"bundle", b"<script>" * 9)), ""),
        (form(_pictures()[0], "a.png", field % (b"x", b"y" * 70_000)), ""),
        (form(_pictures()[0], "a.png", *(field % (b"f%d" % n, b"") for n in range(40))), ""),
        (whole.replace(b"Content-Disposition", b"X" * 9000), ""),
        (whole.replace(b'name="file"', b""), ""),
    )
    body, content_type = forms[int(rng.integers(len(forms)))]
    return "broken form", body, content_type


MAKES: tuple[Make, ...] = (
    cut_picture,
    cut_picture,
    cut_dicom,
    cut_dicom,
    cut_volume,
    huge_png,
    huge_bmp,
    huge_dicom,
    huge_nifti,
    huge_nrrd,
    nrrd_elsewhere,
    random_dicom,
    wrong_kind,
    wrong_kind,
    zip_slip,
    zip_link,
    nested_zip,
    zip_of_zeros,
    zip_that_lies,
    zip_damaged,
    zip_of_nothing,
)
RARE: tuple[Make, ...] = (zip_of_many, packed_bomb)
"""Costly ones: one in some hundreds of uploads."""
