"""The `emberline` command: one table of commands, each imported only when it is used.

A command X of the table lives in a module that offers two functions:

    configure_X(parser: argparse.ArgumentParser) -> None     adds the command's options
    run_X(args: argparse.Namespace) -> int                   does the work and returns the exit status

(with _ for each - of its name)

so that `emberline --help` imports neither torch nor any of the three packages. Exit statuses: 0 done; 1 a deliberate error; 2 a wrong command
line or config; 130 interrupted.
"""

import argparse
import functools
import importlib
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import emberline
from emberline.errors import ConfigError, EmberlineError, MissingDependencyError, first_line

EXIT_ERROR = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 130


@dataclass(frozen=True)
class Command:
    """One line of the table.

    Args:
        name: what the user types.
        module: where `configure_<name>` and `run_<name>` are.
        summary: one line, shown by `emberline --help`.
        example: one or more command lines, shown by `emberline <name> --help`.
    """

    name: str
    module: str
    summary: str
    example: str

    def load(self) -> tuple[Callable[[argparse.ArgumentParser], None], Callable[[argparse.Namespace], int]]:
        """Import the module and return its two functions.

        Raises:
            MissingDependencyError: a package that the command needs is missing or does not load here.
        """
        try:
            module = importlib.import_module(self.module)
        except (ImportError, OSError) as error:
            if isinstance(error, ImportError) and (error.name or "").startswith("emberline"):
                raise
            raise MissingDependencyError(
                f"`emberline {self.name}` cannot load what it needs: {first_line(error)}. "
                "Run `emberline doctor`: it tries each package and says what to do"
            ) from error
        function = self.name.replace("-", "_")
        return getattr(module, f"configure_{function}"), getattr(module, f"run_{function}")


COMMANDS = (
    Command(
        "train",
        "emberline.train.cli",
        "Train a model from a pipeline config and write checkpoints.",
        "emberline train --config examples/movielens_deepfm.pbtxt --output runs/movielens\n"
        "emberline train --config examples/movielens_deepfm.pbtxt --output runs/movielens --resume\n"
        "emberline train --config wider.pbtxt --output runs/wider --warm-start runs/movielens --allow-missing 'dense/head.deep_mlp.*'\n"
        "emberline train --config movies.pbtxt --output runs/movies --init-table movie_id_emb=vectors.parquet",
    ),
    Command(
        "evaluate",
        "emberline.train.scoring.cli",
        "Measure a checkpoint's model on data files.",
        "emberline evaluate --checkpoint runs/movielens\n"
        "emberline evaluate --checkpoint runs/movielens/best --input data/test.parquet --output metrics.json\n"
        "torchrun --nproc-per-node 4 -m emberline evaluate --checkpoint runs/large --input 'data/test/*.parquet'",
    ),
    Command(
        "score",
        "emberline.train.scoring.cli",
        "Write a checkpoint's outputs for the rows of data files.",
        "emberline score --checkpoint runs/movielens --input data/test.parquet --output scores --keep-columns user_id,item_id\n"
        "torchrun --nproc-per-node 4 -m emberline score --checkpoint runs/large --input data/all --output scores --outputs probs",
    ),
    Command(
        "import-torcheasyrec",
        "emberline.train.interop.cli",
        "Turn a checkpoint that TorchEasyRec trained into one of ours.",
        "emberline import-torcheasyrec experiments/ctr/model.ckpt-10000 --output runs/ctr --map ctr.map\n"
        "emberline import-torcheasyrec experiments/ctr/model.ckpt-10000 --output runs/ctr --config ctr.pbtxt --embeddings-only\n"
        "emberline export --checkpoint runs/ctr --output models --name ctr",
    ),
    Command(
        "plan",
        "emberline.train.sharding.plan_cli",
        "Show which rank would hold which table, with memory and cost.",
        "emberline plan --config examples/dlrm_criteo.pbtxt --world-size 8 --hbm 80GiB\n"
        "emberline plan --config examples/dlrm_criteo.pbtxt --world-size 16 --hbm 80GiB --output plan.json --png plan.png",
    ),
    Command(
        "export",
        "emberline.export.cli",
        "Turn a checkpoint into an artifact with the same answers.",
        "emberline export --checkpoint runs/movielens --output models --name movielens --format torchscript\n"
        "emberline export --checkpoint s3://bucket/runs/movielens --output s3://bucket/models --name movielens --keep 3\n"
        "emberline export --checkpoint runs/movielens --output models --name movielens --triton /triton --triton-instances 2 --triton-by-feature\n"
        "emberline export --output models --name movielens --rollback",
    ),
    Command(
        "inspect",
        "emberline.export.cli",
        "Print what a config makes, or a checkpoint or artifact holds.",
        "emberline inspect models/movielens\nemberline inspect examples/movielens_deepfm.pbtxt",
    ),
    Command(
        "explain",
        "emberline.export.cli",
        "Follow one id through a model: its row, and what lies there.",
        "emberline explain models/movielens user_id 42\nemberline explain runs/movielens user_id -5 --json",
    ),
    Command(
        "verify",
        "emberline.export.cli",
        "Check each byte of a checkpoint or artifact by its manifest.",
        "emberline verify models/movielens",
    ),
    Command(
        "forget",
        "emberline.export.forget.cli",
        "Take an id out of all versions of a model, for good.",
        "emberline forget models/movielens user_id 42\n"
        "emberline forget models/movielens user_id --id-file left.txt --key-file /secret/forget.key\n"
        "emberline forget models/movielens user_id 42 --dry-run\n"
        "emberline forget models/movielens --list",
    ),
    Command(
        "reshard",
        "emberline.train.checkpoint.cli",
        "Say what another number of ranks makes of a checkpoint.",
        "emberline reshard runs/large --world-size 16\nemberline reshard runs/large/step-40000 --world-size 1",
    ),
    Command(
        "expire",
        "emberline.train.checkpoint.dynamic_cli",
        "Take out of a checkpoint what training no longer reads.",
        "emberline expire runs/large --older-than 30d --output runs/fresh\n"
        "emberline expire runs/large/step-40000 --before-step 20000 --table user_id_emb --output runs/fresh",
    ),
    Command(
        "increments",
        "emberline.train.checkpoint.dynamic_cli",
        "Bring a checkpoint up to date by what a run wrote since.",
        "emberline increments apply runs/large/step-40000 runs/large/increments --output runs/newest\n"
        "emberline increments apply runs/large/step-40000 incs/40000-40100 incs/40100-40200 --output runs/newest",
    ),
    Command(
        "serve",
        "emberline.serving.cli",
        "Serve a folder of models over HTTP and gRPC.",
        "emberline serve models --backend embedded --http-port 8000 --grpc-port 8001\nemberline serve models --backend triton",
    ),
    Command(
        "triton-repository",
        "emberline.serving.triton.cli",
        "Write the folder that a Triton of your own reads.",
        "emberline triton-repository models /triton --instances 2 --by-feature --max-request-rows 1000\n"
        "emberline triton-repository models /triton --device cuda\n"
        "tritonserver --model-repository=/triton --disable-auto-complete-config",
    ),
    Command(
        "lookup",
        "emberline.serving.cli",
        "Ask a server, or a model here, for the embeddings of rows.",
        "emberline lookup --url http://127.0.0.1:8000 --model movielens --input rows.jsonl\n"
        "emberline lookup --models models --model movielens --input rows.jsonl --only deep",
    ),
    Command(
        "predict",
        "emberline.serving.cli",
        "Ask a server, or a model here, for its answers to some rows.",
        "emberline predict --url http://127.0.0.1:8000 --model movielens --input rows.jsonl\n"
        "emberline predict --models models --model movielens --input rows.jsonl --explain\n"
        '# users once, candidates many times: each line {"user": {"age": 31}, "rows": [{"item_id": 4}, {"item_id": 5}]}\n'
        "emberline predict --url http://127.0.0.1:8000 --model ranker --input users.jsonl --users",
    ),
    Command(
        "probe",
        "emberline.serving.probe",
        "Ask a running server whether a model answers now.",
        "emberline probe --url http://127.0.0.1:8000 --model movielens --timeout 1",
    ),
    Command(
        "loadtest",
        "emberline.serving.loadtest.cli",
        "Put a server under load, and tell how long answers take.",
        "emberline loadtest --url http://127.0.0.1:8000 --model movielens --rate 500 --duration 30 --json load.json --png load.png\n"
        "emberline loadtest --url grpc://127.0.0.1:8001 --model movielens --rate 100,200,400 --rows 100 --input rows.jsonl\n"
        "emberline loadtest --url http://127.0.0.1:8000 --model movielens --rate max --connections 32\n"
        "emberline loadtest --url http://127.0.0.1:8000 --model movielens --rate 200 --max-p99 20 --max-errors 0",
    ),
    Command(
        "canary",
        "emberline.serving.canary.cli",
        "Try a version of a model beside the one served.",
        "emberline canary start --url http://127.0.0.1:8000 --model movielens --version 7 --share 0.1\n"
        "emberline canary report --url http://127.0.0.1:8000 --model movielens\n"
        "emberline canary promote --url http://127.0.0.1:8000 --model movielens",
    ),
    Command(
        "demo",
        "emberline.export.cli",
        "Train on MovieLens-100k, export, serve, compare the answers.",
        "emberline demo --output .demo",
    ),
    Command(
        "doctor",
        "emberline.doctor",
        "Try each package and program used; say what to do on failure.",
        "emberline doctor\nemberline doctor --json",
    ),
)


def build_parser(selected: str | None = None) -> argparse.ArgumentParser:
    """The parser of the whole command line, with the options of `selected` only: the other commands' modules stay unimported.

    Raises:
        MissingDependencyError: the selected command's packages do not load here.
    """
    parser = argparse.ArgumentParser(
        prog="emberline",
        description="Train, export and serve the embedding system of a recommender model.",
        epilog="`emberline COMMAND --help` tells a command's options, with an example.",
        formatter_class=functools.partial(argparse.HelpFormatter, max_help_position=14),  # longer names have a line of their own
    )
    parser.add_argument("--version", action="version", version=f"emberline {emberline.__version__}")
    children = parser.add_subparsers(dest="command", metavar="COMMAND", title="commands", required=True)
    for command in COMMANDS:
        child = children.add_parser(
            command.name,
            help=command.summary,
            description=command.summary,
            epilog="example:\n" + "\n".join(f"  {line}" for line in command.example.splitlines()),
            formatter_class=argparse.RawDescriptionHelpFormatter,
            allow_abbrev=False,
        )
        if command.name == selected:
            configure, run = command.load()
            configure(child)
            child.set_defaults(run=run)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit status.

    Args:
        argv: the arguments after the program's name; those of this process where not given.

    Raises:
        SystemExit: on `--help`, `--version` (status 0), or a wrong command line (status 2).
    """
    arguments = list(sys.argv[1:] if argv is None else argv)
    # The options before the command take no values, so the first plain word is the command.
    selected = next((argument for argument in arguments if not argument.startswith("-")), None)
    try:
        args = build_parser(selected).parse_args(arguments)
        run: Callable[[argparse.Namespace], int] = args.run
        return run(args)
    except EmberlineError as error:
        print(f"emberline: error: {error}", file=sys.stderr)
        return EXIT_USAGE if isinstance(error, ConfigError) else EXIT_ERROR
    except BrokenPipeError:
        # The reader of our output (`| head`) has left. Python would complain once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_ERROR
    except KeyboardInterrupt:
        print("emberline: interrupted", file=sys.stderr)
        return EXIT_INTERRUPTED
