"""What is wrong with a config, with its place, so that follow-on problems can be left out."""

from collections.abc import Iterable

from emberline.train.config.text import Path, TextProblems


class Problems:
    """Collects sentences; those about a part that lost a field to a mistake in the text are left out."""

    def __init__(self, text: TextProblems) -> None:
        self._text = text
        self._found: list[str] = []

    def add(self, path: Path, sentence: str) -> None:
        """Note what is wrong with the message at `path`."""
        if not self._text.covers(path):
            self._found.append(sentence)

    def add_all(self, path: Path, sentences: Iterable[str]) -> None:
        """Note several."""
        for sentence in sentences:
            self.add(path, sentence)

    @property
    def messages(self) -> list[str]:
        """All of them: those of the text first, each once."""
        return list(dict.fromkeys([*self._text.messages, *self._found]))
