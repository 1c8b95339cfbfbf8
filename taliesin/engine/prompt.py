"""How a text and a question become token ids, so that the seam between them is the same whether the
block is grafted or prefilled.

The text and the question are tokenised apart and joined as ids: tokenising the joined string could
merge tokens across the seam (measured on every tokenizer tried), and the block's ids would no
longer be a prefix. Documents are always tokenised with special tokens off, so `<|im_end|>` inside a
document stays text; only the chat template's own parts may produce control tokens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import TYPE_CHECKING, Any, NoReturn

from taliesin.errors import ModelError

if TYPE_CHECKING:
    from taliesin.engine.llama import Model

_MARK = "TaliesinDocumentGoesHere"
SEPARATOR = "\n\n"


@dataclass(frozen=True)
class Frame:
    """The parts of a prompt around a document and a question, as token ids.

    A prompt is `before`, document, `between`, question, `after`. `kind` is "chat" or "raw"; `stop`
    ends a generation.
    """

    kind: str
    before: tuple[int, ...]
    between: tuple[int, ...]
    after: tuple[int, ...]
    stop: tuple[int, ...]


def frame(model: Model, *, raw: bool = False) -> Frame:
    """The model's own chat template cut at the user's message; without a template, or with `raw`,
    BOS and nothing else.

    Raises:
        ModelError: the template in the model file does not render a user message.
    """
    stop = tuple(sorted(model.end_of_generation))
    template = None if raw else model.chat_template()
    bos = (model.bos,) if model.adds_bos and model.bos >= 0 else ()
    if template is None:
        return Frame("raw", bos, (), (), stop)
    rendered = render(template, [{"role": "user", "content": _MARK}], model)
    head, mark, tail = rendered.partition(_MARK)
    if not mark or _MARK in tail:
        raise ModelError(
            "the model's chat template does not show the user's message once",
            where=model.path,
            hint="--raw saves the text without a template",
        )
    before = model.tokenize(head, special=True)
    if bos and tuple(before[:1]) != bos:
        before = [*bos, *before]
    between = model.tokenize(SEPARATOR, special=False)
    return Frame(
        "chat", tuple(before), tuple(between), tuple(model.tokenize(tail, special=True)), stop
    )


def render(template: str, messages: Sequence[dict[str, str]], model: Model) -> str:
    """A Jinja chat template applied to messages, with the generation prompt. The template comes
    from a file: it is sandboxed.

    Raises:
        ModelError: the template fails.
    """
    import jinja2
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generation(Extension):
        """`{% generation %}`: marks the assistant's words for training; here only its content."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: jinja2.parser.Parser) -> jinja2.nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return jinja2.nodes.Scope(body, lineno=line)

    def refuse(message: str) -> NoReturn:
        raise jinja2.TemplateError(message)

    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, loopcontrols]
    )
    environment.globals.update(
        raise_exception=refuse,
        # Local time, as llama-server's.
        strftime_now=lambda form: datetime.now().astimezone().strftime(form),
    )
    environment.filters["tojson"] = _to_json

    def control(token: int) -> str:
        return model.piece(token, special=True).decode("utf-8", "replace") if token >= 0 else ""

    variables: dict[str, Any] = {
        "messages": list(messages),
        "tools": None,  # `tools is not none` is asked of it; an undefined name is not none
        "documents": None,
        "add_generation_prompt": True,
        "bos_token": control(model.bos),
        "eos_token": control(model.eos),
    }
    try:
        return environment.from_string(template).render(variables)
    except Exception as error:  # the template's own code: any error is the template's
        said = error if isinstance(error, jinja2.TemplateError) else repr(error)
        raise ModelError(
            "the model's chat template fails", got=said, where=model.path, hint="--raw"
        ) from error


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Jinja's `tojson` as chat templates expect it: not escaped for HTML."""
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def document_parts(model: Model, shape: Frame, text: str, block_tokens: int) -> list[list[int]]:
    """Token ids of a document, framed, as one or more prompts-to-be of at most `block_tokens` ids
    each.

    A part never ends inside a character: it ends earlier instead. Each part carries `before` and
    `between`, so that each can be asked on its own.
    """
    ids = model.tokenize(text, special=False)
    room = block_tokens - len(shape.before) - len(shape.between)
    if room < 1:
        raise ValueError(
            f"block_tokens {block_tokens} leaves no room beside the chat template's "
            f"{block_tokens - room} tokens"
        )
    parts: list[list[int]] = []
    start = 0
    while start < len(ids) or not parts:
        end = min(start + room, len(ids))
        while end < len(ids) and end > start + 1 and not _whole(model, ids[start:end]):
            end -= 1
        parts.append([*shape.before, *ids[start:end], *shape.between])
        start = end
    return parts


def _whole(model: Model, ids: Sequence[int]) -> bool:
    """Whether the last tokens end with a complete UTF-8 character."""
    tail = b"".join(model.piece(t) for t in ids[-4:])
    for length in range(1, min(4, len(tail)) + 1):
        lead = tail[-length]
        if lead & 0xC0 != 0x80:
            needed = 1 if lead < 0x80 else 2 if lead < 0xE0 else 3 if lead < 0xF0 else 4
            return needed == length
    return True
