"""Pictures and pages to look at."""
