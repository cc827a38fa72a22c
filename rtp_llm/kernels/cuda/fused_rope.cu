#include "rtp_llm/kernels/cuda/fused_rope.h"

#include "rtp_llm/kernels/common/float8.h"
#include "rtp_llm/kernels/cuda/launch.h"
#include "rtp_llm/kernels/cuda/pack.h"
#include "rtp_llm/kernels/cuda/reduce.h"

namespace rtp_llm::cuda {
namespace {

constexpr int kThreads = 256;

enum class Part { kQuery, kKey, kValue };

// What most calls do without: positions on several axes, queries that grow, 8-bit floats and
// scales. A kernel without it needs far fewer registers.
bool is_plain(const FusedRopeArgs& args) {
  return !has_axes(args) && args.log_length <= 0 && args.k_scale == nullptr &&
         args.v_scale == nullptr && args.cache_dtype == args.dtype &&
         (args.out_dtype == args.dtype || args.out_dtype == DType::kOther);
}

template <bool kPlain>
__device__ inline bool several_axes(const FusedRopeArgs& args) {
  return !kPlain && has_axes(args);
}

// A head of a token.
struct Head {
  Part part;
  int index;

  __device__ Head(const FusedRopeArgs& args, int head) : part(Part::kQuery), index(head) {
    if (index < args.num_heads) return;
    part = Part::kKey;
    index -= args.num_heads;
    if (index < args.num_kv_heads) return;
    part = Part::kValue;
    index -= args.num_kv_heads;
  }
};

// By value: a choice between addresses of kernel arguments would put them into memory.
template <class View>
__device__ inline View of_part(Part part, const View& q, const View& k, const View& v) {
  return part == Part::kQuery ? q : part == Part::kKey ? k : v;
}

// The elements of a head are cut into units of two packs, which hold N pairs that turn together
// (half a rotation apart, or side by side) or just lie side by side. This is where they begin.
struct Unit {
  int first, second;
  int pair;         // the first one; -1: these do not turn
  bool has_second;  // an odd number of elements may be left over, one at a time

  __device__ Unit(const FusedRopeArgs& args, int unit, int n) : has_second(true) {
    const int rotating = args.rotary_dim / 2 / n;
    if (unit < rotating) {
      pair = unit * n;
      first = args.rotary_offset + (args.is_neox ? pair : 2 * pair);
      second = first + (args.is_neox ? args.rotary_dim / 2 : n);
      return;
    }
    const int rest = 2 * (unit - rotating) * n;
    pair = -1;
    first = beside(args, rest);
    second = beside(args, rest + n);
    if (n == 1) has_second = rest + 1 < args.head_dim - args.rotary_dim;
  }

  // The channel of the i-th one that does not turn.
  __device__ static int beside(const FusedRopeArgs& args, int i) {
    return i < args.rotary_offset ? i : i + args.rotary_dim;
  }
};

template <class T, int N>
struct Packs {
  Pack<T, N> first, second;

  __device__ void load_from(const T* head, const Unit& unit) {
    first = load<N>(head + unit.first);
    second = first;
    if (unit.has_second) second = load<N>(head + unit.second);
  }

  __device__ void store_to(T* head, const Unit& unit) const {
    store(head + unit.first, first);
    if (unit.has_second) store(head + unit.second, second);
  }
};

// The numbers of two packs.
template <int N>
struct Numbers {
  float first[N], second[N];

  template <class T>
  __device__ explicit Numbers(const Packs<T, N>& packs) {
    widen(packs.first, first);
    widen(packs.second, second);
  }

  template <class T>
  __device__ Packs<T, N> packs() const {
    return {narrow<T>(first), narrow<T>(second)};
  }

  __device__ float squares(bool has_second) const {
    float sum = 0.0f;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += first[i] * first[i];
    if (!has_second) return sum;
#pragma unroll
    for (int i = 0; i < N; ++i) sum += second[i] * second[i];
    return sum;
  }

  __device__ void scale(const Numbers& weights, float factor) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] *= factor * weights.first[i];
      second[i] *= factor * weights.second[i];
    }
  }

  __device__ void multiply(float factor) {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      first[i] *= factor;
      second[i] *= factor;
    }
  }

  // Pair i: half a rotation apart, or (2i, 2i + 1) of both packs seen as one array.
  __device__ void turn(bool is_neox, int i, float cos, float sin) {
    if (is_neox) {
      turn(first[i], second[i], cos, sin);
    } else {
      turn(2 * i < N ? first[2 * i % N] : second[2 * i % N],
           2 * i + 1 < N ? first[(2 * i + 1) % N] : second[(2 * i + 1) % N], cos, sin);
    }
  }

  __device__ static void turn(float& x, float& y, float cos, float sin) {
    const float turned = x * cos - y * sin;
    y = y * cos + x * sin;
    x = turned;
  }
};

// A token's positions on the axes.
template <bool kPlain>
struct Positions {
  int64_t time, height, width;

  __device__ Positions(const FusedRopeArgs& args, int token, const TokenPlace& place)
      : time(position_of(args, token, place, 0)), height(0), width(0) {
    if (!several_axes<kPlain>(args)) return;
    height = position_of(args, token, place, 1);
    width = position_of(args, token, place, 2);
  }

  __device__ bool known() const { return time >= 0 && height >= 0 && width >= 0; }

  __device__ int64_t by(int axis) const { return axis == 0 ? time : axis == 1 ? height : width; }
};

// Turns the pairs of a unit; cosines and sines come four at a time when all turn by one axis.
template <bool kPlain, int N>
__device__ inline void turn_unit(const FusedRopeArgs& args, const Positions<kPlain>& positions,
                                 int pair, Numbers<N>& numbers) {
  const int half = args.rotary_dim / 2;
  if constexpr (N % 4 == 0) {
    if (!several_axes<kPlain>(args)) {
      const float* const row = args.cos_sin + positions.time * args.rotary_dim + pair;
#pragma unroll
      for (int i = 0; i < N; i += 4) {
        const Pack<float, 4> cos = load<4>(row + i);
        const Pack<float, 4> sin = load<4>(row + half + i);
#pragma unroll
        for (int j = 0; j < 4; ++j) {
          numbers.turn(args.is_neox, i + j, cos.element[j], sin.element[j]);
        }
      }
      return;
    }
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const int axis = several_axes<kPlain>(args) ? axis_of_pair(args, pair + i) : 0;
    const float* const row = args.cos_sin + positions.by(axis) * args.rotary_dim + pair + i;
    numbers.turn(args.is_neox, i, row[0], row[half]);
  }
}

// Packs as T or, divided, as 8-bit floats.
template <bool kPlain, class T, int N>
__device__ inline void store_as(void* base, int64_t at, DType own, DType dtype, const Unit& unit,
                                const Packs<T, N>& packs, float divisor) {
  if (kPlain || (dtype == own && divisor == 1.0f)) {
    return packs.store_to(static_cast<T*>(base) + at, unit);
  }
  Numbers<N> numbers(packs);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    numbers.first[i] /= divisor;
    numbers.second[i] /= divisor;
  }
  if (dtype == own) {
    return numbers.template packs<T>().store_to(static_cast<T*>(base) + at, unit);
  }
  const bool fnuz = dtype == DType::kFloat8E4m3fnuz;
  Packs<uint8_t, N> bytes;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    bytes.first.element[i] = float8_e4m3(__float_as_uint(numbers.first[i]), fnuz);
    bytes.second.element[i] = float8_e4m3(__float_as_uint(numbers.second[i]), fnuz);
  }
  bytes.store_to(static_cast<uint8_t*>(base) + at, unit);
}

// Where a head of a token is written to.
struct Targets {
  void* out;  // null: not returned
  int64_t out_at;
  void* cache;
  int64_t cache_at;  // -1: not stored
  float divisor;

  __device__ Targets(const FusedRopeArgs& args, int token, const TokenPlace& place,
                     const Head& head) {
    const bool query = head.part == Part::kQuery;
    const HeadsView view = of_part(head.part, args.q_out, args.k_out, args.v_out);
    const int64_t row = query ? query_row(args, token, place) : token;
    out = view.data;
    out_at = row * view.token_stride + head.index * view.head_stride;
    cache = nullptr;
    cache_at = -1;
    divisor = 1.0f;
    if (query) return;
    const int plane = head.part == Part::kValue ? 1 : 0;
    const CacheView rows = plane == 1 ? args.v_cache : args.k_cache;
    const CachePlace to = cache_place(args, token, place, plane);
    if (to.row < 0) return;
    cache = rows.data;
    cache_at =
        to.row * rows.row_stride + to.place * rows.token_stride + head.index * rows.head_stride;
    const float* const scale = plane == 1 ? args.v_scale : args.k_scale;
    if (scale != nullptr) divisor = *scale;
    if (args.scales != nullptr) args.scales[scale_place(args, to, head.index)] = 1.0f;
  }
};

template <bool kPlain, class T, int N>
__device__ inline void give(const FusedRopeArgs& args, const Targets& targets, const Unit& unit,
                            const Packs<T, N>& packs) {
  if (targets.out != nullptr) {
    store_as<kPlain>(targets.out, targets.out_at, args.dtype, args.out_dtype, unit, packs, 1.0f);
  }
  if (targets.cache_at >= 0) {
    store_as<kPlain>(targets.cache, targets.cache_at, args.dtype, args.cache_dtype, unit, packs,
                     targets.divisor);
  }
}

// How much a query beyond the trained length grows.
template <bool kPlain>
__device__ inline float growth(const FusedRopeArgs& args, int64_t position) {
  if (kPlain || args.log_length <= 0 || position + 1 <= args.log_length) return 1.0f;
  return logf(static_cast<float>(position + 1)) / logf(static_cast<float>(args.log_length));
}

// A query or key unit after norm (whose result is rounded, as when a kernel of its own had written
// it), rotation and growth.
template <bool kPlain, class T, int N>
__device__ inline Packs<T, N> finished(const FusedRopeArgs& args,
                                       const Positions<kPlain>& positions, const Head& head,
                                       const Unit& unit, float inverse, const Packs<T, N>& packs) {
  const void* const weight = head.part == Part::kQuery ? args.q_weight : args.k_weight;
  const float factor = head.part == Part::kQuery ? growth<kPlain>(args, positions.time) : 1.0f;
  if (weight == nullptr && unit.pair < 0 && factor == 1.0f) return packs;
  Numbers<N> numbers(packs);
  if (weight != nullptr) {
    Packs<T, N> weights;
    weights.load_from(static_cast<const T*>(weight), unit);
    numbers.scale(Numbers<N>(weights), inverse);
    numbers = Numbers<N>(numbers.template packs<T>());
  }
  if (unit.pair >= 0) turn_unit<kPlain>(args, positions, unit.pair, numbers);
  if (factor != 1.0f) numbers.multiply(factor);
  return numbers.template packs<T>();
}

// Tokens on the first axis of the grid, their heads on the second: 2^lane_bits lanes (at most 32)
// for each head, of which each has up to kUnits of its units.
template <class T, int N, int kUnits, bool kPlain>
__global__ void __launch_bounds__(kThreads)
    fused_rope_heads(FusedRopeArgs args, int lane_bits, int heads) {
  const int token = static_cast<int>(blockIdx.x);
  const int item = static_cast<int>(blockIdx.y) * thread_count() + thread_index();
  const int lane = item & ((1 << lane_bits) - 1);
  const Head head(args, item >> lane_bits);
  const int units = item >> lane_bits < heads ? (args.head_dim + 2 * N - 1) / (2 * N) : 0;
  const HeadsView from = of_part(head.part, args.q, args.k, args.v);
  const T* const source =
      static_cast<const T*>(from.data) + token * from.token_stride + head.index * from.head_stride;
  Packs<T, N> packs[kUnits];
  float squares = 0.0f;
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if (lane + (i << lane_bits) >= units) break;
    const Unit unit(args, lane + (i << lane_bits), N);
    packs[i].load_from(source, unit);
    if (args.q_weight != nullptr) squares += Numbers<N>(packs[i]).squares(unit.has_second);
  }
  if (args.q_weight != nullptr) {
    for (int mask = 1 << lane_bits >> 1; mask > 0; mask /= 2) squares += exchange(squares, mask);
  }
  TokenPlace place;
  if (units == 0 || !find_token(args, token, &place)) return;
  const Positions<kPlain> positions(args, token, place);
  if (args.cos_sin != nullptr && !positions.known()) return;
  const float inverse = 1.0f / sqrtf(squares / static_cast<float>(args.head_dim) + args.eps);
  const Targets targets(args, token, place, head);
#pragma unroll
  for (int i = 0; i < kUnits; ++i) {
    if (lane + (i << lane_bits) >= units) break;
    const Unit unit(args, lane + (i << lane_bits), N);
    if (head.part != Part::kValue) {
      packs[i] = finished<kPlain>(args, positions, head, unit, inverse, packs[i]);
    }
    give<kPlain>(args, targets, unit, packs[i]);
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

template <class T, int N, int kUnits, bool kPlain>
void run(const FusedRopeArgs& args, Stream stream) {
  const int64_t units = ceil_div(args.head_dim, 2 * N);
  int lane_bits = 0;
  while (1 << lane_bits < kGroup && (kUnits << lane_bits) < units) ++lane_bits;
  const int heads = args.num_heads + (args.v.data == nullptr ? 1 : 2) * args.num_kv_heads;
  const int64_t lanes = int64_t{heads} << lane_bits;
  const int64_t pieces = ceil_div(lanes, kThreads);
  const dim3 grid(blocks(args.tokens, "rotate_and_store"), side_blocks(pieces, "rotate_and_store"));
  const int block = static_cast<int>(round_up(ceil_div(lanes, pieces), kGroup));
  fused_rope_heads<T, N, kUnits, kPlain><<<grid, block, 0, stream>>>(args, lane_bits, heads);
  check_launch("rotate_and_store");
}

}  // namespace

void fused_rope(const FusedRopeArgs& args, void* stream) {
  constexpr int kMostUnits = 16;  // of a lane, when accesses are narrow
  if (args.head_dim > 2 * kGroup * kMostUnits) {
    throw std::runtime_error("rotate_and_store: heads have " + std::to_string(args.head_dim) +
                             " elements; expected at most " +
                             std::to_string(2 * kGroup * kMostUnits) + " on a GPU");
  }
  if (args.tokens == 0) return;
  visit_float_dtype(args.dtype, [&](auto element) {
    using T = decltype(element);
    constexpr int kWide = kAccessBytes / sizeof(T);
    const auto queue = static_cast<Stream>(stream);
    if (args.head_dim > 2 * kWide * kGroup || !fits(args, kWide, sizeof(T))) {
      run<T, 1, kMostUnits, false>(args, queue);
    } else if (is_plain(args)) {
      run<T, kWide, 1, true>(args, queue);
    } else {
      run<T, kWide, 1, false>(args, queue);
    }
  });
}

}  // namespace rtp_llm::cuda
