# SPDX-License-Identifier: Apache-2.0
"""The tokenizer that a tokenizer.json describes."""

from __future__ import annotations

import codecs
import re
from pathlib import Path

import tokenizers

from rtp_llm.model_folder import ModelFilesError, name_of, parse_json

# Pieces of words that are spelled with a prefix, "##ing"; few models have them.
_PREFIX = re.compile(rb'"continuing_subword_prefix"\s*:\s*"[^"]')


def parse_tokenizer_json(content: bytes, where: Path | str) -> tokenizers.Tokenizer:
    """Build the tokenizer of the file's content, without padding or truncation.

    Raises ModelFilesError with the reason; `where` names the file in it.
    """
    content = content.removeprefix(codecs.BOM_UTF8)
    if _PREFIX.search(content):
        _check_merges(content, where)
    try:
        backend = tokenizers.Tokenizer.from_buffer(content)
        backend.no_padding()
        backend.no_truncation()
        return backend
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # a panic in the binding is not an Exception
        raise ModelFilesError(f"cannot read {where}: {str(error)[:200]}") from error


def _check_merges(content: bytes, where: Path | str) -> None:
    """Raise ModelFilesError for a merge with a second half that lacks the prefix of such pieces.

    tokenizers 0.23 cuts the prefix off without looking: it ends the process inside a character.
    """
    model = parse_json(content, where).get("model")
    if not isinstance(model, dict) or model.get("type", "BPE") != "BPE":
        return
    prefix, merges = model.get("continuing_subword_prefix"), model.get("merges")
    if not isinstance(prefix, str) or not isinstance(merges, list):
        return
    for merge in merges:
        halves = merge.split(" ", 1) if isinstance(merge, str) else merge
        second = halves[-1] if isinstance(halves, list) and halves else ""
        if isinstance(second, str) and not second.startswith(prefix):
            raise ModelFilesError(
                f"{where}: model.merges joins {name_of(second)}, which does not begin with "
                f"continuing_subword_prefix ({name_of(prefix)})"
            )
