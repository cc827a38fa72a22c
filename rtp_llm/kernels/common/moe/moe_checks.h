// Checks the tensors of routing and of experts and describes them to kernels, for every device.
// What index tensors hold is not looked at.
#pragma once

#include <string>

#include "rtp_llm/kernels/common/moe/moe.h"
#include "rtp_llm/kernels/common/glue.h"

namespace rtp_llm::glue {

TopkArgs select_topk_args(const Tensor& logits, const Tensor& ids, const Tensor& weights,
                          bool renormalize);

TopkArgs group_topk_args(const Tensor& logits, const OptionalTensor& bias, const Tensor& ids,
                         const Tensor& weights, const std::string& scoring, int64_t groups,
                         int64_t top_groups, int64_t group_best, bool renormalize, double scaling);

FakeBalanceArgs fake_balance_args(const Tensor& ids, const Tensor& scales, int64_t expert_num,
                                  int64_t dp_rank, int64_t dp_size, int64_t ep_size);

// The results are left to the caller.
ExpertSortArgs expert_sort_args(const Tensor& ids, int64_t experts);
GroupedLinearArgs grouped_linear_args(const Tensor& x, const Tensor& weight, const Tensor& offsets);
ExpertSumArgs expert_sum_args(const Tensor& y, const Tensor& places, const Tensor& weights);

}  // namespace rtp_llm::glue
