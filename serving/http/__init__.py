"""HTTP: the KServe v2 protocol with its binary extension, plain rows, `/docs` and `/metrics`, as a FastAPI app."""
