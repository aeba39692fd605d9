"""Config: protobuf text read once, at the edge, into frozen dataclasses."""
