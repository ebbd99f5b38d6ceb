"""Between recap and an image archive: receive studies, send results, ask over DICOMweb."""
