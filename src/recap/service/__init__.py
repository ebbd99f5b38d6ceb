"""The service: uploads, jobs that survive a kill, results, and the viewer at /."""
