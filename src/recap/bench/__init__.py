"""The paper's experiments: its published numbers, what is possible, and tables beside our own."""
