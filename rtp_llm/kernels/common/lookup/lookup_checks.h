// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of the embedding and of the resolution of tokens and describes them to
// kernels, for every device. The ids are not looked at.
#pragma once

#include "rtp_llm/kernels/common/lookup/calls.h"
#include "rtp_llm/kernels/common/lookup/lookup.h"

namespace rtp_llm::glue {

// `out` is left to the caller: [ids, columns of the table].
EmbeddingArgs embedding_args(const EmbeddingCall& call);

SubstituteTokensArgs substitute_tokens_args(const SubstituteTokensCall& call);

}  // namespace rtp_llm::glue
