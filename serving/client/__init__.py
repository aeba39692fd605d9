"""The client: from raw rows to answers, over HTTP or gRPC, of the embedded server or of Triton."""

from emberline.serving.client.client import AsyncClient, Client

__all__ = ["AsyncClient", "Client"]
