#!/bin/sh
# Makes the virtual environment from the lock files. Run by `make setup`, which tells when it is needed.
# Usage: scripts/setup.sh PYTHON VENV LOCK      (LOCK: cpu or cuda)
set -eu

python=$1
venv=$2
lock=requirements/$3.txt
cpu_index=https://download.pytorch.org/whl/cpu

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' || {
    echo "setup: Python 3.11 is needed, and $python is $("$python" -V 2>&1). Name yours: make setup PYTHON=/path/to/python3.11" >&2
    exit 1
}
[ -f "$lock" ] || {
    echo "setup: there is no $lock: LOCK is cpu or cuda" >&2
    exit 1
}

# An environment made from the other lock cannot be changed into this one: both builds of fbgemm fill the same folder.
fresh=
for mark in "$venv"/.made-from-*; do
    [ -e "$mark" ] && [ "$mark" != "$venv/.made-from-$3" ] && fresh=--clear
done
if [ -n "$fresh" ] || ! "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
    echo "setup: making $venv with $("$python" -V)"
    "$python" -m venv --clear "$venv"
fi
rm -f "$venv"/.made-from-*

pip() {
    "$venv/bin/python" -m pip --disable-pip-version-check install -qq --no-deps "$@"
}

torch=$(grep '^torch=' "$lock")
echo "setup: installing $torch"
case $torch in
# The source that pip is set up with may have the CPU build; PyTorch's own index surely has it.
*+cpu) pip "$torch" 2>/dev/null || pip --index-url "$cpu_index" "$torch" ;;
*) pip "$torch" ;;
esac
echo "setup: installing $lock and requirements/dev.txt"
pip -r "$lock" -r requirements/dev.txt
echo "setup: installing emberline, editable"
pip --no-build-isolation --editable .
touch "$venv/.made-from-$3"
echo "setup: $venv is ready"
