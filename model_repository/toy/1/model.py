"""The same for every model: config.pbtxt says which artifact is served."""

from emberline.serving.triton.backend import TritonPythonModel

__all__ = ["TritonPythonModel"]
