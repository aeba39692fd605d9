"""A user's own head, by dotted path."""

import importlib
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor, nn

from emberline.errors import ConfigError
from emberline.train.config.model_config import CustomModelConfig
from emberline.train.embedding import EmbeddingGroup

_DRY_RUN_ROWS = 3


def create_custom_head(embedding_group: EmbeddingGroup, config: CustomModelConfig, search_paths: Sequence[Path]) -> nn.Module:
    """Import the class and call it with the embedding group and the config's `kwargs`.

    Args:
        embedding_group: handed over to be asked for names and widths; the head must not keep it as a submodule.
        config: class path and arguments.
        search_paths: folders that the class may be imported from, besides where Python looks anyway (which goes first).

    Raises:
        ConfigError: it cannot be imported, is no module, its constructor fails, or it keeps the embedding group.
    """
    head_class = import_head_class(config.class_path, search_paths)
    where = f"custom_model {config.class_path!r}"
    arguments = ", ".join(name for name, _ in config.kwargs) or "none"
    try:
        head = head_class(embedding_group, **dict(config.kwargs))
    except ConfigError:
        raise
    except Exception as error:
        message = f"{where}: its constructor, called with the embedding group and the kwargs {arguments}, raised {type(error).__name__}: {error}"
        raise ConfigError(message) from error
    kept = {id(module) for module in embedding_group.modules()} & {id(module) for module in head.modules()}
    if kept:
        raise ConfigError(
            f"{where} keeps the embedding group, or a part of it, as a submodule; ask it for widths in the constructor, and let go of it"
        )
    return head


def import_head_class(class_path: str, search_paths: Sequence[Path]) -> type[nn.Module]:
    """The class of that dotted path.

    Raises:
        ConfigError: no such module or class, its import fails, or it is no `torch.nn.Module`.
    """
    module_name, _, class_name = class_path.rpartition(".")
    where = f"custom_model {class_path!r}"
    if not module_name or not class_name:
        raise ConfigError(f"{where}: write class_path as package.module.Class")
    with _importable(search_paths):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            looked = ", ".join(str(path) for path in search_paths)
            hint = f"; besides Python's own places, these were searched: {looked}" if looked else ""
            raise ConfigError(f"{where}: there is no module {error.name!r}{hint}") from error
        except Exception as error:
            raise ConfigError(f"{where}: importing {module_name} raised {type(error).__name__}: {error}") from error
    found = getattr(module, class_name, None)
    if found is None:
        classes = [name for name, value in vars(module).items() if isinstance(value, type) and issubclass(value, nn.Module)]
        raise ConfigError(f"{where}: module {module_name} ({module.__file__}) has no {class_name}; its modules are: {', '.join(classes) or 'none'}")
    if not (isinstance(found, type) and issubclass(found, nn.Module)):
        raise ConfigError(f"{where} is no subclass of torch.nn.Module")
    return found


def check_head(head: nn.Module, embedding_group: EmbeddingGroup, widths: Mapping[str, int], where: str) -> None:
    """Run the head once on zeros, in eval mode, and look at what it returns.

    Args:
        head: from group tensors to `widths`.
        embedding_group: whose groups they are.
        widths: of what it must give, by name: 0 for [B], C for [B, C].
        where: names the head in messages.

    Raises:
        ConfigError: the run fails, or the result is not as `widths` says, such as `{"logits": float tensor [B]}`.
    """
    groups = empty_groups(embedding_group, _DRY_RUN_ROWS)
    was_training = head.training
    head.eval()
    try:
        with torch.no_grad():
            result = head(groups)
    except Exception as error:
        shapes = ", ".join(f"{name} {list(tensor.shape)}" for name, tensor in groups.items())
        raise ConfigError(f"{where}: forward, called with the groups {shapes}, raised {type(error).__name__}: {error}") from error
    finally:
        head.train(was_training)
    if not isinstance(result, dict) or set(result) != set(widths) or not all(isinstance(found, Tensor) for found in result.values()):
        found = f"a dict with {sorted(map(str, result))}" if isinstance(result, dict) else type(result).__name__
        raise ConfigError(f"{where}: forward must return {{{', '.join(f'{name!r}: tensor' for name in widths)}}}, found {found}")
    for name, width in widths.items():
        expected = (_DRY_RUN_ROWS, width) if width else (_DRY_RUN_ROWS,)
        described = f"[B, {width}]" if width else "[B]"
        if tuple(result[name].shape) != expected or not result[name].is_floating_point():
            got = f"{result[name].dtype} {list(result[name].shape)}"
            raise ConfigError(f"{where}: {name} must be floats of shape {described}; for B = {_DRY_RUN_ROWS} found {got}")


def empty_groups(embedding_group: EmbeddingGroup, rows: int) -> dict[str, Tensor]:
    """Group tensors of zeros; each row of a sequence has one step."""
    groups = {}
    for group in embedding_group.groups:
        if group.is_lengths:
            groups[group.name] = torch.ones(rows, dtype=torch.int64)
        else:
            groups[group.name] = torch.zeros((rows, 1, group.dim) if group.is_padded else (rows, group.dim))
    return groups


@contextmanager
def _importable(folders: Sequence[Path]) -> Iterator[None]:
    """Let Python import from these folders too, after all others, for a while."""
    added = [str(folder.resolve()) for folder in folders if str(folder.resolve()) not in sys.path]
    sys.path.extend(added)
    importlib.invalidate_caches()
    try:
        yield
    finally:
        for folder in added:
            sys.path.remove(folder)
