"""Folders of results: the table, what is written beside it, the manifest, and going on."""
