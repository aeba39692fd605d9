import subprocess
import sys


def test_encoding_needs_numpy_only() -> None:
    code = (
        "import sys, emberline.encoding as e; from emberline.schema import *\n"
        "f = FeatureSpec(name='f', kind=FeatureKind.SPARSE, columns=('f',), encoder=HashEncoder(rows=9))\n"
        "e.encode([f], *e.columns_from_rows([f], [{'f': 'a'}]))\n"
        "print([name for name in ('pyarrow', 'torch', 'torchrec', 'pandas', 'xxhash') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"
