"""The command `forget`."""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from emberline.errors import ConfigError, ExportError
from emberline.storage import is_url, to_place


def configure_forget(parser: argparse.ArgumentParser) -> None:
    """Options of `emberline forget`."""
    parser.add_argument("path", type=to_place, metavar="MODELS/NAME", help="a model's folder, on this machine")
    parser.add_argument("feature", nargs="?", metavar="FEATURE", help="whose id: it leaves every table that the feature reads")
    parser.add_argument("value", nargs="?", metavar="ID", help="the value as a row has it; of a feature of several columns a JSON object of these")
    parser.add_argument("--id-file", type=Path, metavar="FILE", help="several ids, one a line, instead of ID")
    parser.add_argument(
        "--key-file",
        type=Path,
        metavar="FILE",
        help="the key of the list, made where it is not there (default: .forgotten.key in the model's folder)",
    )
    parser.add_argument(
        "--shared-rows",
        choices=("refuse", "zero"),
        default="refuse",
        help="rows of tables whose ids own none, which others may read too: refuse (default), or make them zeros for all who read them",
    )
    parser.add_argument("--drop-full", action="store_true", help="leave out programs that were exported by --full, which have the tables inside")
    parser.add_argument("--dry-run", action="store_true", help="tell what would be changed, and change nothing")
    parser.add_argument("--list", action="store_true", help="show who forgot how many ids of which feature, and what was changed; no ids")


def run_forget(args: argparse.Namespace) -> int:
    """Forget, and print each step.

    Raises:
        EmberlineError: it cannot be done.
    """
    from emberline.export.forget.forget import Options, forget

    if is_url(args.path):
        raise ConfigError(
            f"{args.path}: forgetting is for folders on this machine, where a version can be exchanged by one step: copy the model's folder here, "
            "forget, export or copy it under new version numbers, and remove the old ones behind the URL"
        )
    path = Path(args.path)
    if args.list:
        if args.feature is not None or args.id_file is not None:
            raise ConfigError("--list shows what was done; leave out FEATURE, ID and --id-file")
        for line in list_lines(path):
            _say(line)
        return 0
    values = _values(args.feature, args.value, args.id_file)
    options = Options(key_file=args.key_file, zero_shared=args.shared_rows == "zero", drop_full=args.drop_full, dry_run=args.dry_run)
    entry = forget(path, args.feature, values, options, _say)
    done = "nothing was changed: this was a dry run" if args.dry_run else f"forgotten; {len(entry.tags)} tags are in the list of {path}"
    _say(done)
    return 0


def list_lines(model_dir: Path) -> list[str]:
    """Who forgot how many ids, as lines for a terminal.

    Raises:
        ExportError: there is no such folder, or the list is damaged.
    """
    from emberline.export.forget.ledger import read_entries
    from emberline.text_table import columns

    if not model_dir.is_dir():
        raise ExportError(f"{model_dir}: there is no such folder; name a model's, <models>/<name>")
    _, entries = read_entries(model_dir)
    if not entries:
        return [f"{model_dir}: nothing was forgotten"]
    rows = [("time", "by", "feature", "ids", "tables", "versions and deltas changed", "done")]
    for entry in entries:
        changed = [f"{version} ({', '.join(map(str, deltas))})" if deltas else version for version, deltas in entry.versions.items()]
        told = ", ".join(entry.tables), ", ".join(changed) or "-", "yes" if entry.done else "no: call again"
        rows.append((entry.time, entry.by, entry.feature, str(len(entry.tags)), *told))
    return columns(rows)


def _values(feature: str | None, value: str | None, id_file: Path | None) -> Sequence[str]:
    if feature is None:
        raise ConfigError("FEATURE and ID are needed: whose id is to be forgotten, and which")
    if (value is None) == (id_file is None):
        raise ConfigError("give either an ID or --id-file")
    if id_file is None:
        assert value is not None
        return [value]
    try:
        values = list(dict.fromkeys(line for line in id_file.read_text().splitlines() if line.strip()))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{id_file} cannot be read: {error}") from error
    if not values:
        raise ConfigError(f"{id_file} has no ids, one a line")
    return values


def _say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
