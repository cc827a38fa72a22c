// Checks the tensors of the embedding and of the resolution of tokens and describes them to
// kernels, for every device. The ids are not looked at.
#pragma once

#include "rtp_llm/kernels/common/glue.h"
#include "rtp_llm/kernels/common/lookup/lookup.h"

namespace rtp_llm::glue {

// `out` is left to the caller: [ids, columns of the table].
EmbeddingArgs embedding_args(const Tensor& ids, const Tensor& table);

SubstituteTokensArgs substitute_tokens_args(const Tensor& ids, const Tensor& previous);

}  // namespace rtp_llm::glue
