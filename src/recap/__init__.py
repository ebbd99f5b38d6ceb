"""Language-free zero- and few-shot anomaly detection for medical images."""
