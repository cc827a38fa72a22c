#include "rtp_llm/kernels/cpu/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/cpu/linear_attention/state_chunk.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

// Up to a vector of channels of every sequence, the last inputs in registers.
template <class T, int kTaps>
class Channels {
 public:
  Channels(const CausalConv1dArgs& args, int64_t first, int count)
      : args_(args), first_(first), count_(count) {
    float columns[kTaps][Vec::kWidth] = {};
    const T* weight = static_cast<const T*>(args.weight) + first * kTaps;
    for (int c = 0; c < count; ++c) {
      for (int i = 0; i < kTaps; ++i) Vec::load(weight + c * kTaps + i, 1).store(&columns[i][c], 1);
    }
    for (int i = 0; i < kTaps; ++i) weight_[i] = Vec::load(columns[i]);
  }

  void run(const StateChunk& chunk) const {
    Vec line[kTaps];  // line[i]: the input kTaps - 1 - i tokens before the present one
    load_earlier(chunk, line);
    if (chunk.write >= 0 && chunk.write != chunk.read) store_earlier(chunk, line);
    const T* x = static_cast<const T*>(args_.x) + chunk.row * args_.x_stride + first_;
    T* out = static_cast<T*>(args_.out) + chunk.row * args_.channels + first_;
    const Vec one = Vec::set(1.0f);
    for (int64_t t = 0; t < chunk.count; ++t, x += args_.x_stride, out += args_.channels) {
      line[kTaps - 1] = Vec::load(x, count_);
      Vec sum = line[0] * weight_[0];
      for (int i = 1; i < kTaps; ++i) sum = fma(line[i], weight_[i], sum);
      (sum / (one + exp(Vec::zero() - sum))).store(out, count_);
      for (int i = 0; i + 1 < kTaps; ++i) line[i] = line[i + 1];
    }
    if (chunk.write >= 0) store_inputs(chunk);
  }

 private:
  T* input(int64_t block, int64_t position) const {
    return static_cast<T*>(args_.inputs) + block * args_.block_stride +
           position % args_.window * args_.channels + first_;
  }

  void load_earlier(const StateChunk& chunk, Vec* line) const {
    for (int i = 0; i + 1 < kTaps; ++i) {
      const int64_t position = chunk.start - (kTaps - 1) + i;
      line[i] = position >= 0 && chunk.read >= 0 ? Vec::load(input(chunk.read, position), count_)
                                                 : Vec::zero();
    }
  }

  void store_earlier(const StateChunk& chunk, const Vec* line) const {
    for (int i = 0; i + 1 < kTaps; ++i) {
      const int64_t position = chunk.start - (kTaps - 1) + i;
      if (position >= 0) line[i].store(input(chunk.write, position), count_);
    }
  }

  void store_inputs(const StateChunk& chunk) const {
    const int64_t skipped = chunk.count > args_.window ? chunk.count - args_.window : 0;
    const T* x = static_cast<const T*>(args_.x) + chunk.row * args_.x_stride + first_;
    for (int64_t t = skipped; t < chunk.count; ++t) {
      Vec::load(x + t * args_.x_stride, count_).store(input(chunk.write, chunk.start + t), count_);
    }
  }

  const CausalConv1dArgs& args_;
  int64_t first_;
  int count_;
  Vec weight_[kTaps];
};

template <class T, int kTaps>
void convolve(const CausalConv1dArgs& args, int64_t begin, int64_t end) {
  for (int64_t first = begin; first < end; first += Vec::kWidth) {
    const int64_t left = end - first;
    const Channels<T, kTaps> channels(args, first,
                                      static_cast<int>(left < Vec::kWidth ? left : Vec::kWidth));
    for (int64_t b = 0; b < args.sequences.num_seqs; ++b) {
      const StateChunk chunk = state_chunk(args.sequences, b);
      if (chunk.count > 0) channels.run(chunk);
    }
  }
}

}  // namespace

void causal_conv1d(const CausalConv1dArgs& args, int64_t begin, int64_t end) {
  const int64_t first = begin * kConvChannels;
  const int64_t last = end * kConvChannels < args.channels ? end * kConvChannels : args.channels;
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    switch (args.taps) {
      case 1:
        return convolve<T, 1>(args, first, last);
      case 2:
        return convolve<T, 2>(args, first, last);
      case 3:
        return convolve<T, 3>(args, first, last);
      default:
        return convolve<T, 4>(args, first, last);
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
