"""Versions that come while a server runs: `folder` looks what is to be served, `updates` has it served, `pacing` says when to try again what failed.

`aside` opens models without holding up whoever stops the server, and `reasons` tells callers why a version is not served.
"""
