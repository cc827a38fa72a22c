#include "rtp_llm/kernels/cpu/linear_attention/linear_attention.h"
#include "rtp_llm/kernels/cpu/linear_attention/state_chunk.h"

namespace rtp_llm::cpu::RTP_LLM_ISA {
namespace {

template <class T>
void unit_row(const T* x, float* out, int64_t size, float scale) {
  Vec squares = Vec::zero();
  for_vectors(size, [&](int64_t i, int count) {
    const Vec a = Vec::load(x + i, count);
    squares = fma(a, a, squares);
  });
  const Vec factor = Vec::set(scale / __builtin_sqrtf(squares.sum() + 1e-6f));
  for_vectors(size, [&](int64_t i, int count) {
    (Vec::load(x + i, count) * factor).store(out + i, count);
  });
}

inline float dot(const float* a, const float* b, int64_t size) {
  Vec sum = Vec::zero();
  for_vectors(size, [&](int64_t i, int count) {
    sum = fma(Vec::load(a + i, count), Vec::load(b + i, count), sum);
  });
  return sum.sum();
}

template <class From, class To>
void convert(const From* from, To* to, int64_t size) {
  for_vectors(size, [&](int64_t i, int count) { Vec::load(from + i, count).store(to + i, count); });
}

template <class T>
float number(const T* x) {
  float value;
  Vec::load(x, 1).store(&value, 1);
  return value;
}

// One value head of one sequence, token by token.
template <class T, class State>
class Head {
 public:
  Head(const GatedDeltaRuleArgs& args, const StateChunk& chunk, int64_t head, float* scratch)
      : args_(args),
        chunk_(chunk),
        head_(head),
        key_head_(head / (args.heads / args.key_heads)),
        size_(args.key_size),
        values_(args.value_size),
        now_(scratch),
        key_(now_ + size_ * values_),
        query_(key_ + size_),
        u_(query_ + size_) {}

  void run() {
    const int64_t end = chunk_.start + chunk_.count;
    const int64_t done = begin();
    const bool fits = chunk_.count <= args_.ring / 2;
    const bool stays = fits && chunk_.read == chunk_.write && end - done <= args_.ring / 2;
    if (fits && !stays && chunk_.write >= 0) write_state(chunk_.start);
    for (int64_t t = 0; t < chunk_.count; ++t) token(t, fits && chunk_.write >= 0);
    if (!fits && chunk_.write >= 0) write_state(end);
  }

 private:
  int64_t state_at(int64_t block) const {
    return block * args_.state_stride + head_ * size_ * values_;
  }
  T* ring_key(int64_t block, int64_t position) const {
    return static_cast<T*>(args_.ring_k) + block * args_.ring_k_stride +
           (position % args_.ring * args_.key_heads + key_head_) * size_;
  }
  float* ring_u(int64_t block, int64_t position) const {
    return args_.ring_u + block * args_.ring_u_stride +
           (position % args_.ring * args_.heads + head_) * values_;
  }
  float* ring_g(int64_t block, int64_t position) const {
    return args_.ring_g + block * args_.ring_g_stride + position % args_.ring * args_.heads + head_;
  }
  int32_t* folded(int64_t block) const {
    return args_.folded + block * args_.folded_stride + head_ * (values_ / 8);
  }

  // S before the chunk; how many of its tokens are in the block's S.
  int64_t begin() {
    if (chunk_.read < 0) {
      memset(now_, 0, static_cast<size_t>(size_ * values_) * sizeof(float));
      return chunk_.start;
    }
    convert(static_cast<const State*>(args_.state) + state_at(chunk_.read), now_, size_ * values_);
    const int64_t done = *folded(chunk_.read);
    for (int64_t position = done; position < chunk_.start; ++position) {
      unit_row(ring_key(chunk_.read, position), key_, size_, 1.0f);
      const float decay = __builtin_expf(*ring_g(chunk_.read, position));
      const float* u = ring_u(chunk_.read, position);
      for (int64_t v = 0; v < values_; ++v) add_row(v, decay, u[v]);
    }
    return done;
  }

  void add_row(int64_t v, float decay, float u) {
    float* row = now_ + v * size_;
    for_vectors(size_, [&](int64_t i, int count) {
      const Vec old = Vec::load(row + i, count) * Vec::set(decay);
      fma(Vec::load(key_ + i, count), Vec::set(u), old).store(row + i, count);
    });
  }

  void write_state(int64_t tokens) {
    convert(now_, static_cast<State*>(args_.state) + state_at(chunk_.write), size_ * values_);
    for (int64_t i = 0; i < values_ / 8; ++i) {
      folded(chunk_.write)[i] = static_cast<int32_t>(tokens);
    }
  }

  void token(int64_t t, bool to_ring) {
    const int64_t row = chunk_.row + t, width = args_.key_heads * size_;
    const T* q = static_cast<const T*>(args_.qkv) + row * args_.qkv_stride + key_head_ * size_;
    const T* k = q + width;
    const T* v = q + (2 * width - key_head_ * size_ + head_ * values_);
    const T* ba = static_cast<const T*>(args_.ba) + row * args_.ba_stride + head_;
    unit_row(q, query_, size_, 1.0f / __builtin_sqrtf(static_cast<float>(size_)));
    unit_row(k, key_, size_, 1.0f);
    const float beta = 1.0f / (1.0f + __builtin_expf(-number(ba)));
    const float x = number(ba + args_.heads) + args_.dt_bias[head_];
    const float softplus = x > 20.0f ? x : __builtin_log1pf(__builtin_expf(x));
    const float g = -__builtin_expf(args_.a_log[head_]) * softplus;
    const float decay = __builtin_expf(g);
    T* out = static_cast<T*>(args_.out) + (row * args_.heads + head_) * values_;
    for (int64_t i = 0; i < values_; ++i) {
      float* state = now_ + i * size_;
      u_[i] = beta * (number(v + i) - decay * dot(state, key_, size_));
      add_row(i, decay, u_[i]);
      Vec::set(dot(state, query_, size_)).store(out + i, 1);
    }
    if (!to_ring) return;
    const int64_t position = chunk_.start + t;
    if (head_ % (args_.heads / args_.key_heads) == 0) {
      convert(k, ring_key(chunk_.write, position), size_);
    }
    convert(u_, ring_u(chunk_.write, position), values_);
    *ring_g(chunk_.write, position) = g;
  }

  const GatedDeltaRuleArgs& args_;
  const StateChunk& chunk_;
  int64_t head_, key_head_, size_, values_;
  float *now_, *key_, *query_, *u_;
};

}  // namespace

void gated_delta_rule(const GatedDeltaRuleArgs& args, int64_t item, float* scratch) {
  const StateChunk chunk = state_chunk(args.sequences, item / args.heads);
  const int64_t head = item % args.heads;
  if (chunk.count == 0) return;
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    if (args.state_dtype == DType::kFloat32) {
      Head<T, float>(args, chunk, head, scratch).run();
    } else {
      Head<T, BFloat16>(args, chunk, head, scratch).run();
    }
  });
}

}  // namespace rtp_llm::cpu::RTP_LLM_ISA
