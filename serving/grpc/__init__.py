"""gRPC: the KServe v2 service under the message types of tritonclient."""
