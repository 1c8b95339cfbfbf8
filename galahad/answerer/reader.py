"""A model that answers after a bank's block, or without one, and what each answer cost.

`GraftReader` puts a block of the bank's library into the context, prefills the question and
decodes. Deliberately does not know: which block suits a question, what an answer means, and whether
it is right.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from galahad.answerer.engines import Completion, answer_in

if TYPE_CHECKING:
    from taliesin.engine.embedded import Engine
    from taliesin.engine.llama import Settings
    from taliesin.engine.prompt import Frame
    from taliesin.store.blockfile import BlockFile
    from taliesin.store.library import Library


class SavedBlock(NamedTuple):
    """A block in the library: what it is called, which model computed it, and its sizes."""

    name: str
    id: str
    model: str
    model_sha256: str
    n_tokens: int
    file_bytes: int
    prefill_seconds: float
    save_seconds: float


class Reader(Protocol):
    """What recall and transfer ask of a model."""

    @property
    def model_sha256(self) -> str: ...

    def identity(self) -> dict[str, object]:
        """What decides which texts come out, JSON-ready."""

    def save(self, library: Library, name: str, text: str, title: str) -> SavedBlock:
        """Store `text` as this model's block under `name`, in place of one that is there."""

    def ask(
        self,
        library: Library | None,
        block: str | None,
        question: str,
        *,
        max_tokens: int,
        grammar: str | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        opening: str = "",
        end: str = "",
    ) -> Completion:
        """The answer to `question` after the block of that name in `library`, or after nothing.

        grammar: GBNF that the answer keeps to (root rule `root`). opening: how the answer begins,
        put into the model's mouth and
        part of the text. end: a text that ends the answer.

        Raises:
            StoreMissing, StoreDamaged, RecipeMismatch: the block. ContextFull: the prompt does not
            fit.
        """

    def certify(self, block: BlockFile) -> None:
        """Recompute the block's certificate here.

        Raises:
            CertificateMismatch: other numbers come out. RecipeMismatch: the block is another
            model's or another build's.
        """

    def close(self) -> None: ...


@dataclass
class GraftReader:
    """llama.cpp in this process, through taliesin.

    Raises:
        ModelError, EngineUnavailable, UnsupportedModel: as `taliesin.engine.Engine`.
    """

    model: str
    settings: Settings
    gpu_layers: int = 0
    _engine: Engine = field(init=False)
    _frame: Frame = field(init=False)

    def __post_init__(self) -> None:
        from taliesin.engine import prompt
        from taliesin.engine.embedded import Engine

        self._engine = Engine(self.model, self.settings, self.gpu_layers)
        self._frame = prompt.frame(self._engine.model)

    @property
    def model_sha256(self) -> str:
        return self._engine.model_sha256

    def identity(self) -> dict[str, object]:
        return {
            "engine": "embedded",
            "model": Path(self.model).name,
            "model_sha256": self.model_sha256,
        }

    def save(self, library: Library, name: str, text: str, title: str) -> SavedBlock:
        # Whole: the question follows the block's last token, whatever its length.
        [saved] = self._engine.save(
            library, text, name, align="whole", title=title, replace_existing=True
        )
        return SavedBlock(
            name,
            saved.info.id,
            Path(self.model).name,
            self.model_sha256,
            len(saved.header.tokens),
            saved.info.file_bytes,
            saved.prefill_seconds,
            saved.save_seconds,
        )

    def ask(
        self,
        library: Library | None,
        block: str | None,
        question: str,
        *,
        max_tokens: int,
        grammar: str | None = None,
        temperature: float = 0.0,
        seed: int = 0,
        opening: str = "",
        end: str = "",
    ) -> Completion:
        from taliesin.engine.llama import Sampling

        engine, model = self._engine, self._engine.model
        query = [
            *model.tokenize(question, special=False),
            *self._frame.after,
            *model.tokenize(opening, special=False),
        ]
        if block is not None and library is not None:
            with library.open(block) as opened:
                grafted = engine.graft(opened, library=library, n_extra=len(query) + max_tokens)
            context, n_block, ids = (
                grafted.context,
                len(grafted.header.tokens),
                [*grafted.header.tail.tolist(), *query],
            )
            reuse_seconds = grafted.restored.read_seconds + grafted.restored.place_seconds
        else:
            n_block, ids = 0, [*self._frame.before, *query]
            context = engine.context(self.settings, len(ids) + max_tokens)
            reuse_seconds = 0.0
        return answer_in(
            engine,
            context,
            n_block,
            [ids],
            max_tokens=max_tokens,
            sampling=Sampling(temperature=temperature, seed=seed, grammar=grammar),
            stop=self._frame.stop,
            opening=opening,
            end=end,
            reuse_seconds=reuse_seconds,
        )

    def certify(self, block: BlockFile) -> None:
        self._engine.graft(block, certify=True)

    def close(self) -> None:
        self._engine.close()
