# SPDX-License-Identifier: Apache-2.0
"""Builds a prompt that fits from the texts of /infill, in llama.cpp's format, files first."""

from __future__ import annotations

from collections.abc import Sequence

from rtp_llm.server.protocols.llama_cpp.protocol import InfillExtra, InfillRequest
from rtp_llm.server.turn.prompts import LONG_TOKEN
from rtp_llm.server.turn.served_model import ServedModel
from rtp_llm.text.fill_in_middle import FillInMiddle

# llama.cpp's default names for files without one.
REPOSITORY, CURRENT_FILE = "myproject\n", "filename\n"
# Precedes a piece of a file if the model has no token for that.
SNIPPET = "\n\n--- snippet ---\n\n"


def infill_prompt(
    request: InfillRequest, tokens: FillInMiddle, model: ServedModel, room: int
) -> tuple[list[int], bool]:
    """The token ids of the prompt, at most `room`, and whether it was truncated.

    The first pieces of `input_extra` are dropped first, then the beginning of the prefix and the
    end of the suffix, which keep three quarters and one quarter of the room.
    """
    size = LONG_TOKEN * room
    texts = request.input_prefix[-size:], request.input_suffix[:size], request.prompt or ""
    prefix, suffix, begun = (_encode(text, model) for text in texts)
    prefix += begun
    begin = model.tokenizer.encode("", add_special_tokens=True)
    room = max(0, room - len(begin) - len(tokens.prompt((), ())))
    kept_suffix = suffix[: max(room - len(prefix), room // 4)]
    left = room - len(kept_suffix)
    kept_prefix = prefix[max(0, len(prefix) - left) :]
    extra = _extra(request.input_extra or (), tokens, model, size)
    kept_extra = extra[max(0, len(extra) - (left - len(kept_prefix))) :]
    ids = [*begin, *kept_extra, *tokens.prompt(kept_prefix, kept_suffix)]
    kept = len(kept_prefix) + len(kept_suffix) + len(kept_extra)
    cut = sum(map(len, texts[:2])) < len(request.input_prefix) + len(request.input_suffix)
    return ids, cut or kept < len(prefix) + len(suffix) + len(extra)


def _extra(
    pieces: Sequence[InfillExtra], tokens: FillInMiddle, model: ServedModel, size: int
) -> list[int]:
    """Other files and the header of this one; at least the last `size` characters of them."""
    parts: list[list[int]] = []
    if tokens.file >= 0:
        parts.append([tokens.file, *_encode(CURRENT_FILE, model)])
    for piece in reversed(pieces):
        if size <= 0:
            break
        text = piece.text[-size:]
        size -= len(text)
        if tokens.file >= 0:
            head = [tokens.file, *_encode(piece.filename + "\n", model)]
        else:
            head = _encode(SNIPPET, model)
        parts.append([*head, *_encode(text, model)])
    if tokens.repository >= 0:
        parts.append([tokens.repository, *_encode(REPOSITORY, model)])
    return [each for part in reversed(parts) for each in part]


def _encode(text: str, model: ServedModel) -> list[int]:
    return model.tokenizer.encode(text, add_special_tokens=False) if text else []
