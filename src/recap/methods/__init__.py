"""The methods that ReCAP is compared with, on equal terms: one file each, one interface."""
