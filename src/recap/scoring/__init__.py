"""From an image to a prediction, and the bundle that a detector is saved in."""
