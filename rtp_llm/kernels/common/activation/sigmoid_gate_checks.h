// What is called for the output gate of attention, and what kernels are given.
#pragma once

#include "rtp_llm/kernels/common/activation/calls.h"
#include "rtp_llm/kernels/common/activation/sigmoid_gate.h"
