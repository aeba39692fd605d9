"""Artifacts in Triton Inference Server: its configuration, its Python backend's model, and a launcher.

`config` describes a model to Triton, `repository` lays out the folder that Triton reads, `launcher` starts a server over it, and
`backend` is what runs inside Triton's Python process: it imports Triton's own module, so import it nowhere else.
"""
