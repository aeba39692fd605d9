"""A machine that only has what a GPU's image comes with lacks xxhash, by which artifacts are compared with their manifests.

What a benchmark writes it reads itself, in the same process, so that any digest does. Nothing else may use this: no other process would find such an
artifact to be what its manifest says.
"""

import hashlib
import sys
from types import ModuleType


def stand_in() -> bool:
    """Let BLAKE2 take the place of XXH3 where xxhash is not installed, and whether it did; before anything of Emberline is imported."""
    try:
        import xxhash  # noqa: F401
    except ImportError:
        pass
    else:
        return False
    found = ModuleType("xxhash")
    found.__dict__["xxh3_128"] = lambda: hashlib.blake2b(digest_size=16)
    found.__dict__["xxh3_128_hexdigest"] = lambda data: hashlib.blake2b(data, digest_size=16).hexdigest()
    sys.modules["xxhash"] = found
    return True
