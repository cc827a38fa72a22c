// SPDX-License-Identifier: Apache-2.0
// What is called for gates of attention and of shared experts, and what kernels are given.
#pragma once

#include "rtp_llm/kernels/common/activation/calls.h"
#include "rtp_llm/kernels/common/activation/sigmoid_gate.h"
