"""Running a detector outside torch's eager mode: exported graphs and the choice among them."""
