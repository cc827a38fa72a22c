#include "rtp_llm/kernels/cuda/fused_rope.h"

#include "rtp_llm/kernels/common/float8.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 128;

enum class Part { kQuery, kKey, kValue };

// A head of a token. Its elements are cut into units of two packs, which hold N pairs that turn
// together (half a rotation apart, or side by side) or just lie side by side.
struct Head {
  Part part;
  int index;

  __device__ Head(const FusedRopeArgs& args, int head) {
    part = head < args.num_heads                       ? Part::kQuery
           : head < args.num_heads + args.num_kv_heads ? Part::kKey
                                                       : Part::kValue;
    index = part == Part::kQuery ? head : (head - args.num_heads) % args.num_kv_heads;
  }
};

// By value: a choice between addresses of kernel arguments would put them into memory.
template <class View>
__device__ inline View of_part(Part part, const View& q, const View& k, const View& v) {
  return part == Part::kQuery ? q : part == Part::kKey ? k : v;
}

// Where the two packs of a unit begin within a head.
struct Unit {
  int first, second;
  int pair;  // the first one; -1: these do not turn

  __device__ Unit(const FusedRopeArgs& args, int unit, int n) {
    const int rotating = args.rotary_dim / 2 / n;
    if (unit < rotating) {
      pair = unit * n;
      first = args.rotary_offset + (args.is_neox ? pair : 2 * pair);
      second = first + (args.is_neox ? args.rotary_dim / 2 : n);
      return;
    }
    pair = -1;
    first = beside(args, 2 * (unit - rotating) * n);
    second = beside(args, (2 * (unit - rotating) + 1) * n);
  }

  // The channel of the i-th one that does not turn.
  __device__ static int beside(const FusedRopeArgs& args, int i) {
    return i < args.rotary_offset ? i : i + args.rotary_dim;
  }
};

template <class T, int N>
struct Elements {
  float first[N];
  float second[N];

  __device__ void load_from(const T* head, const Unit& unit) {
    const Pack<T, N> a = load<N>(head + unit.first);
    const Pack<T, N> b = load<N>(head + unit.second);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] = to_float(a.element[i]);
      second[i] = to_float(b.element[i]);
    }
  }

  __device__ float squares() const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += first[i] * first[i] + second[i] * second[i];
    return sum;
  }

  // The norm is rounded, as when a kernel of its own had written it.
  __device__ void scale(const T* weight, const Unit& unit, float inverse) {
    const Pack<T, N> a = load<N>(weight + unit.first);
    const Pack<T, N> b = load<N>(weight + unit.second);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] = to_float(from_float<T>(first[i] * inverse * to_float(a.element[i])));
      second[i] = to_float(from_float<T>(second[i] * inverse * to_float(b.element[i])));
    }
  }

  __device__ void divide(float divisor) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] /= divisor;
      second[i] /= divisor;
    }
  }

  // Grows by the factor and becomes what T can hold.
  __device__ void finish(float factor) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] = to_float(from_float<T>(first[i] * factor));
      second[i] = to_float(from_float<T>(second[i] * factor));
    }
  }

  __device__ void turn(bool is_neox, const float (&cos)[N], const float (&sin)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      float& x = is_neox ? first[i] : 2 * i < N ? first[2 * i % N] : second[2 * i % N];
      float& y = is_neox         ? second[i]
                 : 2 * i + 1 < N ? first[(2 * i + 1) % N]
                                 : second[(2 * i + 1) % N];
      const float turned = x * cos[i] - y * sin[i];
      y = y * cos[i] + x * sin[i];
      x = turned;
    }
  }
};

// Cosines and sines of N pairs; they come in 16 bytes when every pair turns by one axis.
template <int N>
__device__ inline void load_angles(const FusedRopeArgs& args, const int64_t (&position)[3],
                                   int pair, float (&cos)[N], float (&sin)[N]) {
  const int half = args.rotary_dim / 2;
  if (N >= 4 && !has_axes(args)) {
    const float* const row = args.cos_sin + position[0] * args.rotary_dim + pair;
#pragma unroll
    for (int i = 0; i < N; i += 4) {
      const Pack<float, 4> c = load<4>(row + i);
      const Pack<float, 4> s = load<4>(row + half + i);
#pragma unroll
      for (int j = 0; j < 4 && i + j < N; ++j) {
        cos[i + j] = c.element[j];
        sin[i + j] = s.element[j];
      }
    }
    return;
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int axis = has_axes(args) ? axis_of_pair(args, pair + i) : 0;
    const int64_t turned_by = axis == 0 ? position[0] : axis == 1 ? position[1] : position[2];
    const float* const row = args.cos_sin + turned_by * args.rotary_dim + pair + i;
    cos[i] = row[0];
    sin[i] = row[half];
  }
}

// Numbers that T holds exactly are stored as T or as 8-bit floats.
template <class T, int N>
__device__ inline void store_pack(void* base, int64_t at, DType dtype, const float (&from)[N]) {
  if (dtype == DType::kFloat8E4m3fn || dtype == DType::kFloat8E4m3fnuz) {
    Pack<uint8_t, N> pack;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      pack.element[i] = float8_e4m3(__float_as_uint(from[i]), dtype == DType::kFloat8E4m3fnuz);
    }
    store(static_cast<uint8_t*>(base) + at, pack);
    return;
  }
  Pack<T, N> pack;
#pragma unroll
  for (int i = 0; i < N; ++i) pack.element[i] = from_float<T>(from[i]);
  store(static_cast<T*>(base) + at, pack);
}

template <class T, int N>
__device__ inline void store_unit(void* base, int64_t at, const Unit& unit, DType dtype,
                                  const Elements<T, N>& elements) {
  store_pack<T, N>(base, at + unit.first, dtype, elements.first);
  store_pack<T, N>(base, at + unit.second, dtype, elements.second);
}

// Where a head of a token is written to.
struct Targets {
  void* out;  // null: not returned
  int64_t out_at;
  void* cache;
  int64_t cache_at;  // -1: not stored
  float divisor;

  __device__ Targets(const FusedRopeArgs& args, int64_t token, const TokenPlace& place,
                     const Head& head) {
    const bool query = head.part == Part::kQuery;
    const HeadsView view = of_part(head.part, args.q_out, args.k_out, args.v_out);
    const int64_t row = query ? query_row(args, token, place) : token;
    out = view.data;
    out_at = row * view.token_stride + head.index * view.head_stride;
    cache_at = -1;
    divisor = 1.0f;
    const int plane = head.part == Part::kValue ? 1 : 0;
    const CacheView rows = plane == 1 ? args.v_cache : args.k_cache;
    cache = rows.data;
    if (query || cache == nullptr) return;
    const CachePlace to = cache_place(args, token, place, plane);
    if (to.row < 0) return;
    cache_at =
        to.row * rows.row_stride + to.place * rows.token_stride + head.index * rows.head_stride;
    const float* const scale = plane == 1 ? args.v_scale : args.k_scale;
    if (scale != nullptr) divisor = *scale;
    if (args.scales != nullptr) args.scales[scale_place(args, to, head.index)] = 1.0f;
  }
};

// How much a query beyond the trained length grows.
__device__ inline float growth(const FusedRopeArgs& args, int64_t position) {
  if (args.log_length <= 0 || position + 1 <= args.log_length) return 1.0f;
  return logf(static_cast<float>(position + 1)) / logf(static_cast<float>(args.log_length));
}

// A head of a token, with what the token's place says.
struct Work {
  int64_t token;
  Head head;
  TokenPlace place;
  int64_t position[3] = {0, 0, 0};
  bool present;

  __device__ Work(const FusedRopeArgs& args, int64_t team, int heads)
      : token(team / heads), head(args, static_cast<int>(team % heads)) {
    present = token < args.tokens && find_token(args, token, &place);
    if (!present) return;
    position[0] = position_of(args, token, place, 0);
    if (has_axes(args)) {
      position[1] = position_of(args, token, place, 1);
      position[2] = position_of(args, token, place, 2);
    }
    present = args.cos_sin == nullptr || (position[0] >= 0 && position[1] >= 0 && position[2] >= 0);
  }

  template <class T>
  __device__ const T* source(const FusedRopeArgs& args) const {
    const HeadsView from = of_part(head.part, args.q, args.k, args.v);
    return static_cast<const T*>(from.data) + token * from.token_stride +
           head.index * from.head_stride;
  }

  // Null for a head without norm.
  template <class T>
  __device__ const T* weight(const FusedRopeArgs& args) const {
    if (head.part == Part::kValue) return nullptr;
    return static_cast<const T*>(head.part == Part::kQuery ? args.q_weight : args.k_weight);
  }
};

template <class T, int N>
__device__ inline void do_unit(const FusedRopeArgs& args, const Work& work, const Targets& targets,
                               const Unit& unit, float inverse, Elements<T, N> elements) {
  const T* const weight = work.weight<T>(args);
  if (weight != nullptr) elements.scale(weight, unit, inverse);
  if (work.head.part != Part::kValue && unit.pair >= 0) {
    float cos[N];
    float sin[N];
    load_angles<N>(args, work.position, unit.pair, cos, sin);
    elements.turn(args.is_neox, cos, sin);
  }
  elements.finish(work.head.part == Part::kQuery ? growth(args, work.position[0]) : 1.0f);
  if (targets.out != nullptr) {
    store_unit(targets.out, targets.out_at, unit, args.out_dtype, elements);
  }
  if (targets.cache_at < 0) return;
  if (targets.divisor != 1.0f) elements.divide(targets.divisor);
  store_unit(targets.cache, targets.cache_at, unit, args.cache_dtype, elements);
}

// A team of `lanes` neighbours (a power of two, at most 32) for each head; every lane has up to
// kUnits of its units.
template <class T, int N, int kUnits>
__global__ void __launch_bounds__(kThreads)
    fused_rope_heads(FusedRopeArgs args, int lanes, int heads) {
  const Work work(args, (int64_t{blockIdx.x} * kThreads + thread_index()) / lanes, heads);
  const int lane = thread_index() % lanes;
  const int units = work.present ? args.head_dim / 2 / N : 0;
  Elements<T, N> elements[kUnits];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if (lane + i * lanes >= units) break;
    elements[i].load_from(work.source<T>(args), Unit(args, lane + i * lanes, N));
    squares += elements[i].squares();
  }
  if (args.q_weight != nullptr) {
    for (int mask = lanes / 2; mask > 0; mask /= 2) squares += exchange(squares, mask);
  }
  if (!work.present) return;
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(args.head_dim) + args.eps);
  const Targets targets(args, work.token, work.place, work.head);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if (lane + i * lanes >= units) break;
    do_unit(args, work, targets, Unit(args, lane + i * lanes, N), inverse, elements[i]);
  }
}

// Whether every access of N elements of T (and of as many 8-bit floats) is aligned.
bool fits(const FusedRopeArgs& args, int64_t n, int64_t bytes) {
  const auto view = [&](const HeadsView& heads, int64_t size) {
    return multiples(n * size,
                     {address(heads.data), heads.token_stride * size, heads.head_stride * size});
  };
  const auto rows = [&](const CacheView& cache, int64_t size) {
    return multiples(n * size, {address(cache.data), cache.row_stride * size,
                                cache.token_stride * size, cache.head_stride * size});
  };
  const int64_t out_bytes = args.out_dtype == args.dtype ? bytes : 1;
  const int64_t cache_bytes = args.cache_dtype == args.dtype ? bytes : 1;
  return args.head_dim % (2 * n) == 0 && args.rotary_dim % (2 * n) == 0 &&
         args.rotary_offset % n == 0 &&
         multiples(n * bytes, {address(args.q_weight), address(args.k_weight)}) &&
         address(args.cos_sin) % kAccessBytes == 0 && view(args.q, bytes) && view(args.k, bytes) &&
         view(args.v, bytes) && view(args.q_out, out_bytes) && view(args.k_out, out_bytes) &&
         view(args.v_out, out_bytes) && rows(args.k_cache, cache_bytes) &&
         rows(args.v_cache, cache_bytes);
}

template <class T, int N, int kUnits>
void run(const FusedRopeArgs& args, Stream stream) {
  const int units = args.head_dim / 2 / N;
  int lanes = 1;
  while (lanes < kGroup && lanes * kUnits < units) lanes *= 2;
  const int heads = args.num_heads + (args.v.data == nullptr ? 1 : 2) * args.num_kv_heads;
  const int64_t threads = args.tokens * heads * lanes;
  const unsigned int grid = blocks(ceil_div(threads, kThreads), "rotate_and_store");
  fused_rope_heads<T, N, kUnits><<<grid, kThreads, 0, stream>>>(args, lanes, heads);
  check_launch("rotate_and_store");
}

}  // namespace

void fused_rope(const FusedRopeArgs& args, void* stream) {
  constexpr int kMostUnits = 8;  // of a lane, when accesses are narrow
  if (args.head_dim % 2 != 0 || args.head_dim > 2 * kGroup * kMostUnits) {
    throw std::runtime_error("rotate_and_store: heads have " + std::to_string(args.head_dim) +
                             " elements; expected an even number up to " +
                             std::to_string(2 * kGroup * kMostUnits) + " on a GPU");
  }
  if (args.tokens == 0) return;
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kWide = kAccessBytes / sizeof(T);
    if (args.head_dim <= 2 * kWide * kGroup && fits(args, kWide, sizeof(T))) {
      run<T, kWide, 1>(args, static_cast<Stream>(stream));
    } else {
      run<T, 1, kMostUnits>(args, static_cast<Stream>(stream));
    }
  });
}

}  // namespace rtp_llm::cuda
