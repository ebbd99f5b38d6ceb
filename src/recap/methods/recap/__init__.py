"""The ReCAP model: one equation, one function."""
