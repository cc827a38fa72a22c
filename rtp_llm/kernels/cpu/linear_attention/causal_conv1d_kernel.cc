// SPDX-License-Identifier: Apache-2.0
#include "rtp_llm/kernels/cpu/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/cpu/linear_attention/state_chunk.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

// A tile of channels, of every sequence: rows of x are read in order, the last ones stay in the
// first level of the cache.
template <class T, int kTaps>
class ConvTile {
 public:
  ConvTile(const CausalConv1dArgs& args, int64_t first)
      : args_(args),
        first_(first),
        count_(args.channels - first < kConvChannels ? args.channels - first : kConvChannels) {
    float weight[kTaps * kConvChannels];
    const T* from = static_cast<const T*>(args.weight) + first * kTaps;
    for_vectors(count_ * kTaps,
                [&](int64_t i, int lanes) { Vec::load(from + i, lanes).store(weight + i, lanes); });
    for (int64_t c = 0; c < count_; ++c) {
      for (int i = 0; i < kTaps; ++i) weight_[i][c] = weight[c * kTaps + i];
    }
    if (args.bias == nullptr) return;
    const T* bias = static_cast<const T*>(args.bias) + first;
    for_vectors(count_,
                [&](int64_t c, int lanes) { Vec::load(bias + c, lanes).store(bias_ + c, lanes); });
  }

  void run(const StateChunk& chunk) const {
    const T* line[kTaps];  // line[i]: the input kTaps - 1 - i tokens before the present one
    for (int i = 0; i + 1 < kTaps; ++i) line[i] = earlier(chunk, chunk.start - (kTaps - 1) + i);
    if (chunk.write >= 0 && chunk.write != chunk.read) keep_earlier(chunk, line);
    T* out = static_cast<T*>(args_.out) + chunk.row * args_.channels + first_;
    for (int64_t t = 0; t < chunk.count; ++t, out += args_.channels) {
      line[kTaps - 1] = x(chunk, t);
      run_token(line, out);
      for (int i = 0; i + 1 < kTaps; ++i) line[i] = line[i + 1];
    }
    if (chunk.write < 0) return;
    const int64_t kept = chunk.count < args_.window ? chunk.count : args_.window;
    for (int64_t t = chunk.count - kept; t < chunk.count; ++t) {
      copy(x(chunk, t), input(chunk.write, chunk.start + t));
    }
  }

 private:
  const T* x(const StateChunk& chunk, int64_t token) const {
    return static_cast<const T*>(args_.x) + (chunk.row + token) * args_.x_stride + first_;
  }
  T* input(int64_t block, int64_t position) const {
    return static_cast<T*>(args_.inputs) + block * args_.block_stride +
           position % args_.window * args_.channels + first_;
  }
  const T* earlier(const StateChunk& chunk, int64_t position) const {
    return position >= 0 && chunk.read >= 0 ? input(chunk.read, position) : zeros_;
  }

  void keep_earlier(const StateChunk& chunk, const T* const* line) const {
    for (int i = 0; i + 1 < kTaps; ++i) {
      const int64_t position = chunk.start - (kTaps - 1) + i;
      if (position >= 0) copy(line[i], input(chunk.write, position));
    }
  }

  void copy(const T* from, T* to) const {
    memcpy(to, from, static_cast<size_t>(count_) * sizeof(T));
  }

  void run_token(const T* const* line, T* out) const {
    const Vec one = Vec::set(1.0f);
    for_vectors(count_, [&](int64_t c, int lanes) {
      Vec sum = Vec::load(bias_ + c, lanes);
#pragma GCC unroll 4
      for (int i = 0; i < kTaps; ++i) {
        sum = fma(Vec::load(line[i] + c, lanes), Vec::load(weight_[i] + c, lanes), sum);
      }
      (sum / (one + exp(Vec::zero() - sum))).store(out + c, lanes);
    });
  }

  const CausalConv1dArgs& args_;
  int64_t first_, count_;
  float weight_[kTaps][kConvChannels];
  float bias_[kConvChannels] = {};
  T zeros_[kConvChannels] = {};
};

template <class T, int kTaps>
void convolve(const CausalConv1dArgs& args, int64_t begin, int64_t end) {
  for (int64_t tile = begin; tile < end; ++tile) {
    const ConvTile<T, kTaps> channels(args, tile * kConvChannels);
    for (int64_t b = 0; b < args.sequences.num_seqs; ++b) {
      const StateChunk chunk = state_chunk(args.sequences, b);
      if (chunk.count > 0) channels.run(chunk);
    }
  }
}

}  // namespace

void causal_conv1d(const CausalConv1dArgs& args, int64_t begin, int64_t end) {
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    switch (args.taps) {
      case 1:
        return convolve<T, 1>(args, begin, end);
      case 2:
        return convolve<T, 2>(args, begin, end);
      case 3:
        return convolve<T, 3>(args, begin, end);
      default:
        return convolve<T, 4>(args, begin, end);
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
