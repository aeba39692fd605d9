"""One file for each program format: from a traced module to a file that an engine loads."""
