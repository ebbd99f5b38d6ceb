"""The results of a case as DICOM objects."""
