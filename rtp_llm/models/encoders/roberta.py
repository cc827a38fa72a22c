# SPDX-License-Identifier: Apache-2.0
"""RoBERTa and XLM-RoBERTa: BERT whose positions follow that of the padding token."""

from __future__ import annotations

from typing import Any, ClassVar

from rtp_llm.models.encoders.bert import BertModel
from rtp_llm.models.encoders.label_head import HeadNames
from rtp_llm.models.raw_config import RawConfig


class RobertaModel(BertModel):
    """514 rows are positions of 512 tokens: padding, and what comes before it, has the first."""

    CONFIG_DEFAULTS: ClassVar[dict[str, Any]] = {**BertModel.CONFIG_DEFAULTS, "pad_token_id": 1}
    TEXT_PREFIXES = ("roberta.",)
    TEXT_HEAD = HeadNames("classifier.dense", last="classifier.out_proj")

    @classmethod
    def first_position(cls, raw: RawConfig) -> int:
        return raw.count("pad_token_id") + 1
