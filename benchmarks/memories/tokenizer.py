"""A byte tokenizer for random models: 5 special tokens, 256 bytes, the printable letters, and then
pairs of small letters up to the vocabulary's size. With a chat template.

Random weights choose any token, so each one must be something that can be printed.
"""

from __future__ import annotations

import itertools
import string
from typing import Any

import numpy.typing as npt

SPECIAL = ["<unk>", "<bos>", "<eos>", "<start_of_turn>", "<end_of_turn>"]
LETTERS = [chr(c) for c in range(0x21, 0x7F)] + ["\u2581"]
BYTES = range(len(SPECIAL), len(SPECIAL) + 256)
N_VOCAB = BYTES.stop + len(LETTERS)
"""The fewest tokens that it has."""

TEMPLATE = (
    "{{ bos_token }}{% for m in messages %}<start_of_turn>{{ m['role'] }}\n{{ m['content'] "
    "}}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)

_QUIET = 0.05


def add(out: Any, n_vocab: int = N_VOCAB) -> None:
    """Add it to a GGUFWriter, `n_vocab` tokens.

    Raises:
        ValueError: fewer than `N_VOCAB`, or more than there are pairs.
    """
    import gguf

    pairs = ("".join(pair) for pair in itertools.product(string.ascii_lowercase, repeat=2))
    wanted = n_vocab - N_VOCAB
    more = list(itertools.islice(pairs, max(wanted, 0)))
    if len(more) != wanted:
        raise ValueError(f"the tokenizer: expected {N_VOCAB} tokens to {N_VOCAB + 676}: {n_vocab}")
    tokens = [*SPECIAL, *(f"<0x{b:02X}>" for b in range(256)), *LETTERS, *more]
    kinds = [
        gguf.TokenType.UNKNOWN,
        *[gguf.TokenType.CONTROL] * (len(SPECIAL) - 1),
        *[gguf.TokenType.BYTE] * 256,
        *[gguf.TokenType.NORMAL] * (len(LETTERS) + len(more)),
    ]
    out.add_tokenizer_model("llama")
    out.add_token_list(tokens)
    out.add_token_scores([-float(i) for i in range(len(tokens))])
    out.add_token_types(kinds)
    out.add_bos_token_id(1)
    out.add_eos_token_id(2)
    out.add_eot_token_id(4)
    out.add_unk_token_id(0)
    out.add_add_bos_token(True)
    out.add_add_space_prefix(False)
    out.add_chat_template(TEMPLATE)


def quieten(rows: npt.NDArray[Any]) -> None:
    """Make bytes that are no text small in `rows`, (n_vocab, n_embd), of the matrix that gives the
    logits: llama-server reports no probabilities inside a character.
    """
    rows[BYTES.start : BYTES.stop] *= rows.dtype.type(_QUIET)
