#!/bin/sh
# Lookups and the engine on a CUDA device; see gpu.py. Needs Python, torch for CUDA, numpy and safetensors, and nothing installed of Emberline.
exec python3 "$(dirname "$0")/gpu.py" "$@"
