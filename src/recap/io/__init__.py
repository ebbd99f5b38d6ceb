"""bytes -> Image: readers chosen by content."""
