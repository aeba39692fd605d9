"""What is wrong with a config, with its place, so that follow-on problems can be left out."""

from collections.abc import Iterable

from emberline.train.config.text import Path, TextProblems
from emberline.train.features.sentences import Absence


class Problems:
    """Collects sentences; an `Absence` is left out where a mistake in the text, told already, may be its cause."""

    def __init__(self, text: TextProblems) -> None:
        self._text = text
        self._found: list[str] = []

    def add(self, path: Path, sentence: str) -> None:
        """Note what is wrong with the message at `path`."""
        if not (isinstance(sentence, Absence) and self._text.covers(path)):
            self._found.append(sentence)

    def add_all(self, path: Path, sentences: Iterable[str]) -> None:
        """Note several."""
        for sentence in sentences:
            self.add(path, sentence)

    @property
    def messages(self) -> list[str]:
        """All of them: those of the text first, each once."""
        return list(dict.fromkeys([*self._text.messages, *self._found]))
