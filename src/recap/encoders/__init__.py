"""Frozen vision transformers and their weights."""
