"""DICOM: files, frames and series as cases."""
