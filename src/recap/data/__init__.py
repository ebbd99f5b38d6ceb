"""Folders, benchmark domains, support sets, augmentation and generated data."""
