// SPDX-License-Identifier: Apache-2.0
// The embeddings of encoders: rows of up to three tables, added up and normalised.
#pragma once

#include "rtp_llm/kernels/common/lookup/bert_embedding.h"

namespace rtp_llm::cuda {

// An id without a row gives a row of NaN.
void bert_embedding(const BertEmbeddingArgs& args, void* stream);

}  // namespace rtp_llm::cuda
