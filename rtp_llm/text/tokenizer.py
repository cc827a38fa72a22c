# SPDX-License-Identifier: Apache-2.0
"""The tokenizer of a model folder."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import tokenizers

from rtp_llm.model_folder import ModelFilesError, is_there, read_bytes
from rtp_llm.text.byte_bpe import VOCAB, read_byte_bpe
from rtp_llm.text.chat_template import ChatTemplate, ChatTemplateError
from rtp_llm.text.detokenizer import ByteDetokenizer, Detokenizer, WindowDetokenizer
from rtp_llm.text.generation_defaults import GenerationDefaults, not_honoured
from rtp_llm.text.gguf.tokenizer import read_tokenizer
from rtp_llm.text.model_files import ModelFiles
from rtp_llm.text.prefix_space import apply_prefix_space, tokenizer_class
from rtp_llm.text.sentencepiece_bpe import TOKENIZER_MODEL, read_sentencepiece_bpe
from rtp_llm.text.tekken import TEKKEN, read_tekken
from rtp_llm.text.tiktoken_model import TIKTOKEN_MODEL, read_tiktoken
from rtp_llm.text.token_bytes import TokenBytes, decoder_style
from rtp_llm.text.tokenizer_json import parse_tokenizer_json
from rtp_llm.text.unigram import UNIGRAM_MODEL, read_unigram
from rtp_llm.text.wordpiece import VOCABULARY, read_wordpiece

_logger = logging.getLogger("rtp_llm.text")
# One text is nothing to share among threads; asked for, each process would start one per core.
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")


class Tokenizer:
    """Text to ids and back, and chat messages to prompts, as the model was trained with.

    `eos_token_ids`: every id that ends an answer, by generation_config, config and tokenizer.
    """

    def __init__(
        self, files: ModelFiles, backend: tokenizers.Tokenizer, template: str | None
    ) -> None:
        self._backend = backend
        self._special_tokens = files.special_tokens
        added = backend.get_added_tokens_decoder()
        self.special_ids = frozenset(key for key, token in added.items() if token.special)
        self.eos_token_ids = self._find_eos(files)
        self._files = files
        self.chat_template_source: str | None = None
        """The file that the chat template came from."""
        self.config = files.tokenizer_config
        """The contents of tokenizer_config.json."""
        self.model_config = files.config
        """The contents of the model's config.json."""
        self._template_text = template
        self._template = None if template is None else ChatTemplate(template, self._special_tokens)
        style = decoder_style(backend)
        self._bytes = None if style is None else TokenBytes(backend, style)

    @classmethod
    def from_folder(cls, path: str | Path, chat_template: str | None = None) -> Tokenizer:
        """Load tokenizer.json or what the folder has in its place, and the files next to it;
        `chat_template`: a file used instead.

        Raises ModelFilesError naming the missing or broken file.
        """
        files = ModelFiles.read(path)
        try:
            backend = _backend_of(files)
            apply_prefix_space(backend, files.config, files.tokenizer_config)
            made = cls(files, backend, files.chat_template(chat_template))
            made.chat_template_source = files.chat_template_source(chat_template)
            return made
        except ModelFilesError:
            raise
        except ChatTemplateError as error:
            raise ModelFilesError(f"{path}: {error}") from error
        except Exception as error:  # untrusted files may fail in any way
            reason = f"{type(error).__name__}: {error}"
            raise ModelFilesError(f"cannot use the tokenizer files of {path}: {reason}") from error

    @cached_property
    def defaults(self) -> GenerationDefaults:
        """Sampling defaults of generation_config.json; ModelFilesError when no request has such.

        Keys that would change answers and do not are named in one warning.
        """
        file = self._files.folder / "generation_config.json"
        defaults = GenerationDefaults.read(self._files.generation_config, file)
        if unused := not_honoured(self._files.generation_config):
            _logger.warning("%s: not supported, so without effect: %s", file, ", ".join(unused))
        return defaults

    @property
    def vocab_size(self) -> int:
        """Number of ids that have a token; the model may have more rows."""
        return self._backend.get_vocab_size(with_added_tokens=True)

    @property
    def eos_token(self) -> str | None:
        """The end-of-sequence token that tokenizer_config.json names."""
        return self._special_tokens.get("eos_token")

    @property
    def eos_token_id(self) -> int | None:
        """The id of the end token; `eos_token_ids` also has ids from the model's other files."""
        return self.convert_tokens_to_ids(self.eos_token or "")

    def convert_tokens_to_ids(self, token: str) -> int | None:
        """The id of a token by its spelling in the vocabulary; None: there is none."""
        found: int | None = self._backend.token_to_id(token)
        return found

    def __contains__(self, token: object) -> bool:
        """Whether a token is spelt so."""
        return isinstance(token, str) and self._backend.token_to_id(token) is not None

    @property
    def chat_template(self) -> str | None:
        """The source of the chat template in use."""
        return self._template_text

    @property
    def has_chat_template(self) -> bool:
        """Whether chat messages can be rendered."""
        return self._template is not None

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        """Text to ids; releases the interpreter lock, unlike the backend's `encode`."""
        batch = self._backend.encode_batch_fast([text], add_special_tokens=add_special_tokens)
        ids: list[int] = batch[0].ids
        return ids

    def encode_truncated(
        self, text: str, longest: int, *, side: Literal["left", "right"] = "right"
    ) -> list[int]:
        """Text to at most `longest` ids, special tokens among them, which are all kept.

        The tokens at the end are cut off, or with `side` "left" those at the beginning. If not even
        the special tokens fit, the ids are cut like others.
        """
        encoding = self._backend.encode_batch_fast([text], add_special_tokens=False)[0]
        added = self._backend.num_special_tokens_to_add(is_pair=False)
        if len(encoding) + added > longest:
            encoding.truncate(max(0, longest - added), direction=side)
        ids: list[int] = self._backend.post_process(encoding).ids
        return ids[:longest] if side == "right" else ids[-longest:]

    def encode_batch(
        self, texts: Sequence[str | tuple[str, str]], add_special_tokens: bool = True
    ) -> list[list[int]]:
        """Texts, or pairs of texts as the model takes them, to ids. Several threads share the work
        where the environment has TOKENIZERS_PARALLELISM=true."""
        batch = self._backend.encode_batch_fast([*texts], add_special_tokens=add_special_tokens)
        return [each.ids for each in batch]

    def encode_pair(self, first: str, second: str, longest: int) -> list[int]:
        """A pair of texts to at most `longest` ids, special tokens among them: tokens at the end of
        the second text are left out.

        Raises ValueError if `longest` leaves none of them.
        """
        one, two = self._backend.encode_batch_fast([first, second], add_special_tokens=False)
        room = longest - len(one) - self._backend.num_special_tokens_to_add(is_pair=True)
        if room < 1:
            raise ValueError(f"{longest} tokens are too few: none of the second text would be left")
        two.truncate(room)
        ids: list[int] = self._backend.post_process(one, two).ids
        return ids

    def second_text(self, first: str) -> int:
        """Where the second text begins in the ids of a pair, if the model has token types for the
        two texts; else 0."""
        if self._before_second is None:
            return 0
        (encoding,) = self._backend.encode_batch_fast([first], add_special_tokens=False)
        return len(encoding) + self._before_second

    @cached_property
    def _before_second(self) -> int | None:
        """Special tokens before the second text of a pair; None: both texts have one type."""
        parts = self._backend.encode_batch(["a", "a"], add_special_tokens=False)
        types: list[int] = self._backend.post_process(parts[0], parts[1]).type_ids
        return types.index(1) - len(parts[0]) if 1 in types else None

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        """Ids to text; ids without a token are skipped. Equal to the joined detokeniser pieces."""
        detokenizer = self.detokenizer(skip_special_tokens=skip_special_tokens)
        return detokenizer.feed(token_ids) + detokenizer.flush()

    def detokenizer(
        self,
        context: Sequence[int] = (),
        *,
        skip_special_tokens: bool = True,
        hidden: Collection[int] = (),
    ) -> Detokenizer:
        """A new incremental detokeniser.

        `context`: ids before the text, which decide how it begins (a leading space); `hidden`: ids
        that show no text, besides the special ones.
        """
        skipped = self.special_ids if skip_special_tokens else frozenset()
        if not skipped.issuperset(hidden):
            skipped = skipped.union(hidden)
        if self._bytes is not None:
            return ByteDetokenizer(self._bytes, skipped, context)
        return WindowDetokenizer(self._decode_plainly, skipped, context)

    def token_text(self, token_id: int) -> str:
        """One token's own text, with its leading space; parts of a character become U+FFFD."""
        return self.token_bytes(token_id).decode(errors="replace")

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes that one token adds to a text."""
        if self._bytes is not None:
            return self._bytes[token_id]
        return self._decode_plainly([token_id]).encode()

    @cached_property
    def special_token_ids(self) -> Mapping[str, int]:
        """The ids of special tokens by their texts."""
        return {self._backend.id_to_token(each) or "": each for each in self.special_ids}

    @property
    def special_tokens(self) -> Mapping[str, str]:
        """bos_token, eos_token, ... as the chat template sees them."""
        return self._special_tokens

    @property
    def joins_bytes(self) -> bool:
        """Whether a text is the concatenation of the bytes of its tokens."""
        return self._bytes is not None

    def tokens(self, token_ids: Iterable[int]) -> list[str]:
        """The vocabulary's spelling of each id; "" for an id without a token."""
        return [self._backend.id_to_token(token) or "" for token in token_ids]

    def apply_chat_template(
        self,
        messages: Sequence[Mapping[str, Any]],
        /,
        add_generation_prompt: bool | None = None,
        *,
        continue_final_message: bool = False,
        chat_template: str | None = None,
        tools: Sequence[Mapping[str, Any]] | None = None,
        documents: Sequence[Mapping[str, Any]] | None = None,
        tokenize: bool = False,
        **variables: Any,
    ) -> str:
        """Messages to the prompt's text; encode it with add_special_tokens=False.

        `add_generation_prompt`: by default unless the final message is continued;
        `chat_template`: used instead of the model's; `tools`: functions, in OpenAI's form;
        `tokenize`: False. ChatTemplateError without a template or when it refuses the messages.
        """
        if tokenize:
            raise ChatTemplateError("tokenize=True: encode(text, add_special_tokens=False) does it")
        template = self._template
        if chat_template is not None:
            template = ChatTemplate(chat_template, self._special_tokens)
        if template is None:
            raise ChatTemplateError(
                "the model has no chat template; use /v1/completions or set --chat-template"
            )
        return template.render(
            messages,
            add_generation_prompt=(
                not continue_final_message
                if add_generation_prompt is None
                else add_generation_prompt
            ),
            continue_final_message=continue_final_message,
            tools=tools,
            documents=documents,
            **variables,
        )

    def template_variables(self, chat_template: str | None = None) -> frozenset[str]:
        """Names that the chat template reads; `chat_template`: of this one.

        Raises ChatTemplateError when it does not compile.
        """
        if chat_template is not None:
            return ChatTemplate(chat_template, self._special_tokens).variables
        return frozenset() if self._template is None else self._template.variables

    def _decode_plainly(self, token_ids: Sequence[int]) -> str:
        return self._backend.decode(list(token_ids), skip_special_tokens=False)

    def _find_eos(self, files: ModelFiles) -> tuple[int, ...]:
        found: dict[int, None] = {}
        for file in ("generation_config.json", "config.json"):
            found.update(dict.fromkeys(files.token_ids(file, "eos_token_id")))
        eos = self._backend.token_to_id(self._special_tokens.get("eos_token", ""))
        if eos is not None:
            found[eos] = None
        return tuple(found)


# What makes a tokenizer of another file than tokenizer.json.
_READERS: dict[str, Callable[..., tokenizers.Tokenizer]] = {
    VOCABULARY: read_wordpiece,
    UNIGRAM_MODEL: read_unigram,
    TEKKEN: read_tekken,
    TOKENIZER_MODEL: read_sentencepiece_bpe,
    VOCAB: read_byte_bpe,
    TIKTOKEN_MODEL: read_tiktoken,
}


def _backend_of(files: ModelFiles) -> tokenizers.Tokenizer:
    if files.gguf is not None:
        return read_tokenizer(files.gguf)
    file = files.folder / "tokenizer.json"
    if not is_there(file):
        for name, read in _READERS.items():
            if is_there(files.folder / name):
                named = tokenizer_class(files.config, files.tokenizer_config, name == VOCAB)
                config = {**files.tokenizer_config, "tokenizer_class": named or None}
                return read(files.folder, config, files.special_tokens)
    return parse_tokenizer_json(read_bytes(file), file)
