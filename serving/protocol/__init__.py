"""The data plane: KServe v2 messages and plain rows to packed requests, and the engine's answers back.

Nothing here knows HTTP or gRPC: `emberline.serving.http` and `emberline.serving.grpc` unpack a message, call in here, and pack the answer.
"""
