"""Fitting: plain torch."""
