// SPDX-License-Identifier: Apache-2.0
// Marks a kernel as an operator's: rtp_llm/ops/generate.py makes the glue from the marks.
//
//   CUDA: RTP_LLM_OPERATOR(rms_norm)
//   CPU:  RTP_LLM_OPERATOR(rms_norm, args.rows, rows that a thread takes at least)
//   SYCL: RTP_LLM_OPERATOR(rms_norm, groups, items of a group)
//
// The kernel has the operator's name, its arguments are RmsNormArgs of kernels/common/<family>.
#pragma once

#define RTP_LLM_OPERATOR(...)
