"""The config's protobuf messages: `.proto` files, and the Python that protoc makes of them.

Every field is optional, so that what is not set is known; defaults and checks are those of the dataclasses that messages are read into.
Make the Python anew after an edit with `python -m emberline.train.config.protos.generate`.
"""
