// SPDX-License-Identifier: Apache-2.0
// Checks the tensors of the operators of beam search and describes them to kernels.
#include "rtp_llm/kernels/common/sampling/beams.h"

#include <algorithm>

#include "rtp_llm/kernels/common/sampling/calls.h"

namespace rtp_llm::glue {
namespace {

template <class T>
T* matrix_of(const Tensor& matrix, DType dtype, int64_t rows, int64_t columns, const char* what) {
  check_dim(matrix, 2, what);
  check_dtype(matrix, dtype, what);
  check_sizes(matrix, {rows, columns}, what);
  check_contiguous(matrix, what);
  return matrix.data<T>();
}

// Two matrices, one after the other.
template <class T>
T* pairs_of(const Tensor& pairs, DType dtype, int64_t rows, int64_t columns, const char* what) {
  check_dtype(pairs, dtype, what);
  check_sizes(pairs, {2, rows, columns}, what);
  check_contiguous(pairs, what);
  return pairs.data<T>();
}

template <class T>
T* vector_of(const Tensor& vector, DType dtype, int64_t size, const char* what) {
  check_dtype(vector, dtype, what);
  check_sizes(vector, {size}, what);
  check_contiguous(vector, what);
  return vector.data<T>();
}

int32_t* index_of(const Tensor& index, int64_t size, const char* what) {
  return vector_of<int32_t>(index, DType::kInt32, size, what);
}

void check_vector_of_any_size(const Tensor& vector, DType dtype, const char* what) {
  check_dim(vector, 1, what);
  check_dtype(vector, dtype, what);
  check_contiguous(vector, what);
}

int64_t groups_of(const Tensor& cu_beams, const char* what) {
  check_index(cu_beams, what);
  RTP_LLM_CHECK(cu_beams.numel() > 0, what, " is empty; expected one more than groups");
  return cu_beams.numel() - 1;
}

// Offsets of parts of `size` things.
void check_parts(const int32_t* cu, int64_t parts, int64_t size, const char* what) {
  RTP_LLM_CHECK(cu[0] == 0 && std::is_sorted(cu, cu + parts + 1) && cu[parts] == size, what,
                " must rise from 0 to ", size);
}

}  // namespace

Prepared<SelectBeamsArgs, std::tuple<Tensor, Tensor>> prepare(const SelectBeamsCall& call) {
  check_dim(call.values, 2, "select_beams: values");
  SelectBeamsArgs args = {};
  args.num_rows = call.values.size(0);
  args.columns = call.values.size(1);
  args.num_beams = call.rows.numel();
  args.num_searches = call.diversity_penalty.numel();
  args.num_groups = groups_of(call.cu_beams, "select_beams: cu_beams");
  args.num_stops = call.stop_ids.numel();
  args.k = call.k;
  RTP_LLM_CHECK(args.num_beams * args.columns <= INT32_MAX && args.k >= 0, "select_beams: k is ",
                args.k, ", of ", args.num_beams, " beams with ", args.columns, " candidates each");
  args.values = matrix_of<float>(call.values, DType::kFloat32, args.num_rows, args.columns,
                                 "select_beams: values");
  args.ids =
      matrix_of<int32_t>(call.ids, DType::kInt32, args.num_rows, args.columns, "select_beams: ids");
  args.rows = index_of(call.rows, args.num_beams, "select_beams: rows");
  args.scores =
      vector_of<float>(call.scores, DType::kFloat32, args.num_beams, "select_beams: scores");
  args.cu_beams = call.cu_beams.data<int32_t>();
  args.cu_groups = index_of(call.cu_groups, args.num_searches + 1, "select_beams: cu_groups");
  args.diversity_penalty = vector_of<float>(call.diversity_penalty, DType::kFloat32,
                                            args.num_searches, "select_beams: diversity_penalty");
  args.stop_ids = index_of(call.stop_ids, args.num_stops, "select_beams: stop_ids");
  args.cu_stops = index_of(call.cu_stops, args.num_searches + 1, "select_beams: cu_stops");
  const int64_t found = args.num_groups * args.k;
  Tensor numbers = empty(call.values, {2, args.num_groups, args.k}, DType::kInt32);
  Tensor values = empty(call.values, {2, args.num_groups, args.k}, DType::kFloat32);
  args.parents = numbers.data<int32_t>();
  args.tokens = args.parents + found;
  args.totals = values.data<float>();
  args.logprobs = args.totals + found;
  return {args, {std::move(numbers), std::move(values)}};
}

void check_indices(const SelectBeamsArgs& args) {
  check_parts(args.cu_beams, args.num_groups, args.num_beams, "select_beams: cu_beams");
  check_parts(args.cu_groups, args.num_searches, args.num_groups, "select_beams: cu_groups");
  check_parts(args.cu_stops, args.num_searches, args.num_stops, "select_beams: cu_stops");
  for (int64_t beam = 0; beam < args.num_beams; ++beam) {
    RTP_LLM_CHECK(args.rows[beam] == -1 || args.is_row(args.rows[beam]), "select_beams: rows[",
                  beam, "] is ", args.rows[beam], " of ", args.num_rows, " rows");
  }
}

Prepared<ChooseBeamsArgs, void> prepare(const ChooseBeamsCall& call) {
  ChooseBeamsArgs args = {};
  check_dim(call.numbers, 3, "choose_beams: numbers");
  check_index(call.cu_groups, "choose_beams: cu_groups");
  check_vector_of_any_size(call.scores, DType::kFloat32, "choose_beams: scores");
  check_index(call.row_tokens, "choose_beams: row_tokens");
  args.num_groups = groups_of(call.cu_beams, "choose_beams: cu_beams");
  args.num_searches = call.cu_groups.numel() - 1;
  RTP_LLM_CHECK(args.num_searches >= 0, "choose_beams: cu_groups is empty");
  args.k = call.numbers.size(2);
  args.num_beams = call.rows.numel();
  args.num_scores = call.scores.numel();
  args.num_stops = call.stop_ids.numel();
  args.num_rows = call.row_tokens.numel();
  RTP_LLM_CHECK(args.num_scores >= args.num_beams, "choose_beams: scores is ",
                call.scores.describe(), "; expected at least ", args.num_beams, " numbers");
  const int64_t found = args.num_groups * args.k;
  args.parents = pairs_of<int32_t>(call.numbers, DType::kInt32, args.num_groups, args.k,
                                   "choose_beams: numbers");
  args.tokens = args.parents + found;
  args.totals = pairs_of<float>(call.values, DType::kFloat32, args.num_groups, args.k,
                                "choose_beams: values");
  args.widths = index_of(call.widths, args.num_groups, "choose_beams: widths");
  args.rows = index_of(call.rows, args.num_beams, "choose_beams: rows");
  args.cu_beams = call.cu_beams.data<int32_t>();
  args.cu_groups = call.cu_groups.data<int32_t>();
  args.stop_ids = index_of(call.stop_ids, args.num_stops, "choose_beams: stop_ids");
  args.cu_stops = index_of(call.cu_stops, args.num_searches + 1, "choose_beams: cu_stops");
  args.scores = call.scores.data<float>();
  args.beam_parents = index_of(call.beam_parents, args.num_scores, "choose_beams: beam_parents");
  args.row_tokens = call.row_tokens.data<int32_t>();
  return {args};
}

void check_indices(const ChooseBeamsArgs& args) {
  check_parts(args.cu_beams, args.num_groups, args.num_beams, "choose_beams: cu_beams");
  check_parts(args.cu_groups, args.num_searches, args.num_groups, "choose_beams: cu_groups");
  check_parts(args.cu_stops, args.num_searches, args.num_stops, "choose_beams: cu_stops");
  for (int64_t group = 0; group < args.num_groups; ++group) {
    const int32_t beams = args.cu_beams[group + 1] - args.cu_beams[group];
    RTP_LLM_CHECK(args.widths[group] >= 0 && args.widths[group] <= beams, "choose_beams: widths[",
                  group, "] is ", args.widths[group], " of ", beams, " beams");
  }
  for (int64_t beam = 0; beam < args.num_beams; ++beam) {
    RTP_LLM_CHECK(args.rows[beam] == -1 || args.is_row(args.rows[beam]), "choose_beams: rows[",
                  beam, "] is ", args.rows[beam], " of ", args.num_rows, " rows");
  }
}

Prepared<OrderBeamsArgs, Tensor> prepare(const OrderBeamsCall& call) {
  OrderBeamsArgs args = {};
  check_dim(call.block_table, 2, "order_beams: block_table");
  check_index(call.slot_mapping, "order_beams: slot_mapping");
  check_index(call.sequences, "order_beams: sequences");
  check_index(call.beam_parents, "order_beams: beam_parents");
  args.num_groups = groups_of(call.cu_beams, "order_beams: cu_beams");
  const int64_t rows = call.block_table.size(0);
  args.table_width = call.block_table.size(1);
  args.num_sequences = std::min(rows, call.slot_mapping.numel());
  args.num_beams = call.sequences.numel();
  RTP_LLM_CHECK(call.beam_parents.numel() >= args.num_beams, "order_beams: beam_parents is ",
                call.beam_parents.describe(), "; expected at least ", args.num_beams, " numbers");
  RTP_LLM_CHECK(call.block_size >= 1 && call.block_size <= INT32_MAX, "order_beams: blocks of ",
                call.block_size, " tokens; expected 1 to 2147483647");
  args.block_table = matrix_of<int32_t>(call.block_table, DType::kInt32, rows, args.table_width,
                                        "order_beams: block_table");
  args.slot_mapping = call.slot_mapping.data<int32_t>();
  args.positions = index_of(call.positions, call.slot_mapping.numel(), "order_beams: positions");
  args.sequences = call.sequences.data<int32_t>();
  args.beam_parents = call.beam_parents.data<int32_t>();
  args.cu_beams = call.cu_beams.data<int32_t>();
  args.block_size = static_cast<int32_t>(call.block_size);
  Tensor pairs = empty(call.sequences, {args.num_beams, 2}, DType::kInt32);
  args.pairs = pairs.data<int32_t>();
  return {args, std::move(pairs)};
}

void check_indices(const OrderBeamsArgs& args) {
  check_parts(args.cu_beams, args.num_groups, args.num_beams, "order_beams: cu_beams");
  for (int64_t group = 0; group < args.num_groups; ++group) {
    const int32_t first = args.cu_beams[group], end = args.cu_beams[group + 1];
    if (first == end) continue;
    const bool is_here = args.sequences[first] >= 0;
    for (int64_t beam = first; beam < end; ++beam) {
      const int32_t sequence = args.sequences[beam], parent = args.beam_parents[beam];
      RTP_LLM_CHECK(is_here ? args.is_sequence(sequence) : sequence == -1,
                    "order_beams: sequences[", beam, "] is ", sequence, " of ", args.num_sequences,
                    " sequences, that of the group's first beam is ", args.sequences[first]);
      if (!is_here) continue;
      RTP_LLM_CHECK(parent >= first && parent < end, "order_beams: beam_parents[", beam, "] is ",
                    parent, ", its group has beams ", first, " to ", end - 1);
      const int32_t position = args.positions[sequence];
      RTP_LLM_CHECK(position == args.positions[args.sequences[first]] && position >= 0 &&
                        position / args.block_size < args.table_width,
                    "order_beams: sequence ", sequence, " is at position ", position);
    }
  }
}

}  // namespace rtp_llm::glue
