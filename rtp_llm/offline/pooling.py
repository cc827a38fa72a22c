# SPDX-License-Identifier: Apache-2.0
"""The methods of LLM that sample nothing: vectors, scores and labels of prompts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from rtp_llm.offline.outputs import (
    ClassificationOutput,
    ClassificationRequestOutput,
    EmbeddingOutput,
    EmbeddingRequestOutput,
    PoolingRequestOutput,
    RankedDocument,
    ScoringOutput,
    ScoringRequestOutput,
)
from rtp_llm.offline.prompt_job import EncodedPrompt, PoolingJob
from rtp_llm.offline.prompts import PlainPrompt, Prompt, list_prompts
from rtp_llm.request.params import POOLING_TASKS, PoolingParams, PoolingTask
from rtp_llm.request.sampling_params import truncate_prompt
from rtp_llm.text.pooling_config import PromptTexts, read_prompt_texts
from rtp_llm.text.rerank_template import conversation_frame, conversation_text, is_conversation

if TYPE_CHECKING:
    from rtp_llm.engine.messages import EngineReady
    from rtp_llm.offline.prompt_run import Job
    from rtp_llm.text.tokenizer import Tokenizer
    from rtp_llm.worker.heads.logits_processor import LogitsProcessor

Params = PoolingParams | Sequence[PoolingParams] | None


def refuse_adapter(lora_request: object) -> None:
    """Raise ValueError for a LoRA adapter."""
    if lora_request is not None:
        raise ValueError("lora_request: adapters are not supported yet; leave it out or None")


def _for_task(params: Sequence[PoolingParams], task: PoolingTask) -> list[PoolingParams]:
    """The same for ``task``; prompts often share one object, which is checked once."""
    own = {
        key: each if each.task == task else msgspec.structs.replace(each, task=task)
        for key, each in {id(each): each for each in params}.items()
    }
    return [own[id(each)] for each in params]


class PoolingMethods:
    """What LLM inherits. A model must be served for the task of a method (see ``task``)."""

    settings: Any
    tokenizer: Tokenizer
    ready: EngineReady

    def _new_id(self) -> int:
        raise NotImplementedError

    def _run_jobs(
        self, jobs: Sequence[Job], processors: Sequence[LogitsProcessor], show: bool
    ) -> None:
        raise NotImplementedError

    def encode(
        self,
        prompts: Prompt | Sequence[Prompt],
        pooling_params: Params = None,
        *,
        pooling_task: PoolingTask | None = None,
        truncate_prompt_tokens: int | None = None,
        prompt_name: str | None = None,
        use_tqdm: bool = True,
        lora_request: None = None,
    ) -> list[PoolingRequestOutput]:
        """What the model pools of each prompt (see ``LLM.generate``), in their order: float32
        numbers [width], or [tokens, width] where each token has its own.

        ``pooling_task``: "embed", "score", "classify", "token_classify" or "reward"; None: the
        first that the model is served for. ``pooling_params``, one or one for each prompt, override
        what the folder says. ``truncate_prompt_tokens`` keeps the first so many tokens, and the
        special ones of a text; -1: as many as fit. ``prompt_name``: of the text in the folder's
        config_sentence_transformers.json that comes before each text that is embedded; None: its
        default.

        Raises as ``LLM.generate``.
        """
        refuse_adapter(lora_request)
        listed, task = list_prompts(prompts), pooling_task or self._default_task()
        given = pooling_params or PoolingParams()
        several = [given] * len(listed) if isinstance(given, PoolingParams) else list(given)
        if len(several) != len(listed):
            raise ValueError(f"{len(several)} pooling_params for {len(listed)} prompts")
        before = self._prompt_texts.before(prompt_name) if task == "embed" else ""
        encoded = []
        for prompt, params in zip(listed, _for_task(several, task), strict=True):
            keep = params.truncate_prompt_tokens or truncate_prompt_tokens
            ids = self._pooled_ids(prompt, before, keep)
            encoded.append((EncodedPrompt(prompt, ids), params))
        return self._pool(encoded, use_tqdm)

    def embed(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: Params = None,
        truncate_prompt_tokens: int | None = None,
        prompt_name: str | None = None,
        use_tqdm: bool = True,
        lora_request: None = None,
    ) -> list[EmbeddingRequestOutput]:
        """One vector for each prompt, in the order of the prompts; parameters as for ``encode``.

        The model must be served for that: it is an encoder, its folder has modules.json, or
        ``task`` is "embed" or "all".
        """
        outputs = self.encode(
            prompts,
            pooling_params,
            pooling_task="embed",
            truncate_prompt_tokens=truncate_prompt_tokens,
            prompt_name=prompt_name,
            use_tqdm=use_tqdm,
            lora_request=lora_request,
        )
        return [
            each.converted(EmbeddingRequestOutput, EmbeddingOutput(each.outputs.data.tolist()))
            for each in outputs
        ]

    def classify(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: Params = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[ClassificationRequestOutput]:
        """The probabilities of the labels of each prompt; parameters as for ``encode``."""
        outputs = self.encode(
            prompts,
            pooling_params,
            pooling_task="classify",
            truncate_prompt_tokens=truncate_prompt_tokens,
            use_tqdm=use_tqdm,
        )
        return [
            each.converted(
                ClassificationRequestOutput, ClassificationOutput(each.outputs.data.tolist())
            )
            for each in outputs
        ]

    def reward(
        self,
        prompts: Prompt | Sequence[Prompt],
        *,
        pooling_params: Params = None,
        truncate_prompt_tokens: int | None = None,
        use_tqdm: bool = True,
    ) -> list[PoolingRequestOutput]:
        """The scores of each prompt as the model's head gives them, of each token if it has such a
        head; parameters as for ``encode``."""
        return self.encode(
            prompts,
            pooling_params,
            pooling_task="reward",
            truncate_prompt_tokens=truncate_prompt_tokens,
            use_tqdm=use_tqdm,
        )

    def score(
        self,
        queries: str | Sequence[str],
        documents: str | Sequence[str],
        /,
        *,
        truncate_prompt_tokens: int | None = None,
        pooling_params: PoolingParams | None = None,
        instruction: str | None = None,
        use_tqdm: bool = True,
    ) -> list[ScoringRequestOutput]:
        """The score of each document and its query, of which there is one, or as many.

        Rerankers give the probability that the document answers the query; models that embed the
        cosine of both. ``truncate_prompt_tokens`` leaves out the end of a document that does not
        fit, -1: the context. ``instruction``: for Qwen3-Reranker.

        Raises ValueError for other numbers of queries, and as ``LLM.generate``.
        """
        first = [queries] if isinstance(queries, str) else list(queries)
        second = [documents] if isinstance(documents, str) else list(documents)
        if len(first) not in (1, len(second)):
            raise ValueError(f"{len(first)} queries and {len(second)} documents: give one query")
        if "score" not in self.ready.tasks:
            return self._cosines(first, second, truncate_prompt_tokens, use_tqdm)
        params = msgspec.structs.replace(pooling_params or PoolingParams(), task="score")
        several = first * len(second) if len(first) == 1 else first
        pairs, keep = list(zip(several, second, strict=True)), truncate_prompt_tokens
        encoded = [
            (EncodedPrompt(PlainPrompt(document, None), ids, second_text=begin), params)
            for (_, document), (ids, begin) in zip(
                pairs, self._encode_pairs(pairs, keep, instruction), strict=True
            )
        ]
        return [
            each.converted(ScoringRequestOutput, ScoringOutput(float(each.outputs.data[0])))
            for each in self._pool(encoded, use_tqdm)
        ]

    def rerank(
        self,
        query: str,
        documents: Sequence[str],
        *,
        top_n: int | None = None,
        truncate_prompt_tokens: int | None = None,
        instruction: str | None = None,
        use_tqdm: bool = True,
    ) -> list[RankedDocument]:
        """The ``top_n`` best documents (None: all) for a query, the best first; see ``score``."""
        outputs = self.score(
            query,
            documents,
            truncate_prompt_tokens=truncate_prompt_tokens,
            instruction=instruction,
            use_tqdm=use_tqdm,
        )
        ranked = [
            RankedDocument(index, each.outputs.score, documents[index])
            for index, each in enumerate(outputs)
        ]
        return sorted(ranked, key=lambda each: -each.relevance_score)[:top_n]

    # -- inside --------------------------------------------------------------------------------

    def _default_task(self) -> PoolingTask:
        tasks = [task for task in self.ready.tasks if task in POOLING_TASKS]
        return tasks[0] if tasks else "embed"

    def _pool(
        self, prompts: Sequence[tuple[EncodedPrompt, PoolingParams]], show: bool
    ) -> list[PoolingRequestOutput]:
        per_token = self.ready.scored == "all"
        jobs = [PoolingJob(self._new_id(), *each, per_token=per_token) for each in prompts]
        self._run_jobs(jobs, (), show)
        return [job.output for job in jobs]

    def _cosines(
        self, queries: list[str], documents: list[str], keep: int | None, show: bool
    ) -> list[ScoringRequestOutput]:
        outputs = self.encode(
            [*queries, *documents],
            PoolingParams(normalize=True),
            pooling_task="embed",
            truncate_prompt_tokens=keep,
            use_tqdm=show,
        )
        first, second = outputs[: len(queries)], outputs[len(queries) :]
        several = first * len(second) if len(first) == 1 else first
        return [
            other.converted(
                ScoringRequestOutput, ScoringOutput(float(one.outputs.data @ other.outputs.data))
            )
            for one, other in zip(several, second, strict=True)
        ]

    @cached_property
    def _prompt_texts(self) -> PromptTexts:
        return read_prompt_texts(self.settings.model)

    def _longest(self, keep: int | None) -> int | None:
        """The most tokens that are kept of a text; None: no text is truncated. Raises ValueError if
        the model cannot take as many."""
        limit = self.ready.max_model_len
        if keep is not None and keep > limit:
            truncate_prompt([], keep, limit, 0)  # says so
        return limit if keep == -1 else keep

    def _encode_pairs(
        self, pairs: Sequence[tuple[str, str]], keep: int | None, instruction: str | None
    ) -> list[tuple[list[int], int]]:
        """The ids of each pair, of which ``keep`` are kept, and where its document begins; 0: it
        has no token type of its own."""
        tokenizer, longest = self.tokenizer, self._longest(keep)
        if is_conversation(tokenizer.model_config):
            frame = conversation_frame(tokenizer)
            room = None
            if longest is not None:
                room = max(1, longest - len(frame.before) - len(frame.after))
            texts = [conversation_text(*pair, instruction) for pair in pairs]
            encoded = tokenizer.encode_batch(texts, False)
            return [([*frame.before, *ids[:room], *frame.after], 0) for ids in encoded]
        begins = {query: tokenizer.second_text(query) for query in {pair[0] for pair in pairs}}
        if longest is None:
            listed = tokenizer.encode_batch(pairs)
        else:
            listed = [tokenizer.encode_pair(*pair, longest) for pair in pairs]
        return [(ids, begins[query]) for ids, (query, _) in zip(listed, pairs, strict=True)]

    def _pooled_ids(self, prompt: PlainPrompt, before: str, keep: int | None) -> list[int]:
        """The ids of a prompt, after the text ``before`` it, of which ``keep`` are kept."""
        if prompt.token_ids is not None:
            limit = self.ready.max_model_len
            return truncate_prompt(prompt.token_ids, keep, limit, 0, side="right")
        text, longest = before + (prompt.text or ""), self._longest(keep)
        if longest is None:
            return self.tokenizer.encode(text)
        return self.tokenizer.encode_truncated(text, longest)
