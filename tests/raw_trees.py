"""Small raw trees in the true formats and names of the public sources."""

import csv
from pathlib import Path

import numpy as np
from PIL import Image as PillowImage

BRATS_AFFINE = np.array([[-1.0, 0, 0, 0], [0, -1, 0, 239], [0, 0, 1, 0], [0, 0, 0, 1]])
CT_AFFINE = np.array([[0.7, 0, 0, -150], [0, 0.7, 0, -120], [0, 0, 2.5, 30], [0, 0, 0, 1.0]])
DOWNWARDS = np.diag([1.0, 1, -1, 1])


def noise(seed, shape, low=0, high=256):
    return np.random.default_rng(seed).integers(low, high, shape)


def save_nifti(path, stored, affine, dtype=np.int16):
    import nibabel

    path.parent.mkdir(parents=True, exist_ok=True)
    nibabel.save(nibabel.Nifti1Image(stored.astype(dtype), affine), path)


def brats_patient(root, number, tumour=(), depth=104, seg=True):
    """FLAIR and annotation; `tumour` names the stored slices that show it."""
    folder = root / f"BraTS2021_{number:05d}"
    flair = noise(number, (24, 20, depth), 1, 900)
    labels = np.zeros(flair.shape)
    for stored in tumour:
        labels[5:9, 3:8, stored] = 2
        labels[6, 4, stored] = 4
    save_nifti(folder / f"{folder.name}_flair.nii.gz", flair, BRATS_AFFINE)
    if seg:
        save_nifti(folder / f"{folder.name}_seg.nii.gz", labels, BRATS_AFFINE, np.uint8)
    return folder


def brats_tree(root):
    """Six patients full of tumour, seven with normal slices."""
    for number in range(6):
        brats_patient(root, number, range(50, 104))
    for number in range(6, 13):
        brats_patient(root, number, range(64, 97))
    return root


def ct_pair(image, labels, seed, liver, lesion=(), depth=30, affine=CT_AFFINE, label=1):
    """A CT of noise and its labels, liver in the stored slices `liver`."""
    values = noise(seed, (16, 14, depth), -400, 500)
    marks = np.zeros(values.shape)
    marks[2:12, 3:10, list(liver)] = label
    marks[4:6, 5:8, list(lesion)] = 2
    save_nifti(image, values, affine)
    save_nifti(labels, marks, affine, np.uint8)


def liver_tree(root, volumes=3, scans=2):
    for number in range(1, volumes + 1):
        ct_pair(
            root / f"LiTS/volume_pt1/volume-{number}.nii",
            root / f"LiTS/segmentations/segmentation-{number}.nii",
            number,
            liver=range(4, 26),
            lesion=range(10, 20),
            affine=CT_AFFINE @ DOWNWARDS if number == 2 else CT_AFFINE,
        )
    for number in range(1, scans + 1):
        training = root / "BTCV/RawData/Training"
        ct_pair(
            training / f"img/img{number:04d}.nii.gz",
            training / f"label/label{number:04d}.nii.gz",
            100 + number,
            liver=range(8, 11),
            label=6,
        )
    return root


def resc_volume(part, name, seed, lesions, scans=26):
    images = part / "original_images" / f"{name}_cube_z.img"
    labels = part / "label_images" / f"{name}_cube_z_labelMark"
    for folder in (images, labels):
        folder.mkdir(parents=True)
    for number in range(1, scans + 1):
        scan = noise((seed, number), (32, 16)).astype(np.uint8)
        marks = np.zeros((32, 16), np.uint8)
        if number in lesions:
            marks[10:20, 4:9] = (128, 191, 255)[number % 3]
        PillowImage.fromarray(scan).save(images / f"{number}.bmp")
        PillowImage.fromarray(marks).save(labels / f"{number}.bmp")
    return images


def resc_tree(root):
    size = "MacularCube512x128_1-2-2013_10-11-12"
    held_out, train = root / "x/Edema_validationset", root / "x/Edema_trainingset"
    for place, patient in enumerate(["P0067", "PC011", "PC020"]):
        resc_volume(held_out, f"{patient}_{size}_OD_sn{place}", place, range(8, 22))
    for place, patient in enumerate(["PC011", "PC034"]):
        resc_volume(train, f"{patient}_{size}_OS_sn{place}", 10 + place, range(3, 5), scans=6)
    return root


def oct_tree(root, val=True):
    """Two images of each of three patients per class and part."""
    parts = {"train": 30, "test": 10, **({"val": 20} if val else {})}
    for part, first in parts.items():
        for place, kind in enumerate(["CNV", "DME", "DRUSEN", "NORMAL"]):
            folder = root / "OCT2017" / part / kind
            folder.mkdir(parents=True)
            for patient in range(first, first + 3):
                for number in (1, 2):
                    pixels = noise((place, patient, number), (12, 16)).astype(np.uint8)
                    name = f"{kind}-{patient}-{number}.jpeg"
                    PillowImage.fromarray(pixels).save(folder / name)
    return root


def uuid(seed):
    text = "".join(f"{value:02x}" for value in noise(seed, 16))
    return f"{text[:8]}-{text[8:12]}-{text[12:16]}-{text[16:20]}-{text[20:]}"


def chest_tree(root, each=5):
    """DICOM files and the table of labels, with a row per box as in the original."""
    folder = root / "stage_2_train_images"
    folder.mkdir(parents=True)
    kinds = ["Normal", "Lung Opacity", "No Lung Opacity / Not Normal"]
    rows = []
    for seed in range(len(kinds) * each):
        name, kind = uuid(seed), kinds[seed % len(kinds)]
        save_radiograph(folder / f"{name}.dcm", name, seed)
        rows += [(name, kind)] * (2 if kind == "Lung Opacity" else 1)
    with (root / "stage_2_detailed_class_info.csv").open("w", newline="") as stream:
        csv.writer(stream).writerows([("patientId", "class"), *rows])
    return root


def save_radiograph(path: Path, name, seed):
    from pydicom.dataset import Dataset, FileMetaDataset
    from pydicom.uid import ExplicitVRLittleEndian, SecondaryCaptureImageStorage

    meta = FileMetaDataset()
    meta.TransferSyntaxUID = ExplicitVRLittleEndian
    meta.MediaStorageSOPClassUID = SecondaryCaptureImageStorage
    meta.MediaStorageSOPInstanceUID = f"1.2.826.0.1.{seed + 1}"
    dataset = Dataset()
    dataset.file_meta = meta
    dataset.SOPClassUID = SecondaryCaptureImageStorage
    dataset.SOPInstanceUID = meta.MediaStorageSOPInstanceUID
    dataset.PatientID, dataset.Modality, dataset.ViewPosition = name, "CR", "PA"
    dataset.Rows, dataset.Columns = 18, 20
    dataset.SamplesPerPixel, dataset.PhotometricInterpretation = 1, "MONOCHROME2"
    dataset.BitsAllocated = dataset.BitsStored = 8
    dataset.HighBit, dataset.PixelRepresentation = 7, 0
    dataset.PixelData = noise(seed, (18, 20)).astype(np.uint8).tobytes()
    dataset.save_as(path, enforce_file_format=True)
