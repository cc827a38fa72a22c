// SPDX-License-Identifier: Apache-2.0
// Each rank writes its part of a message into the memory of all others. There is no barrier: a word
// that differs from kAbsent has arrived.
//
// A rank has a buffer [3 epochs][ranks][capacity]. Call n has epoch n % 3: a rank pushes its part
// to place [n % 3][its number] of every other rank's buffer, and polls the places of the others in
// its own until no word there is kAbsent. Then it has all parts, and no other rank needs to know.
// In call n a rank also clears (fills with kAbsent) what it received in call n - 1.
//
// Why nothing is overwritten, and nothing old is read. Calls of a rank come one after another: what
// call n - 1 wrote anywhere was done when call n begins to write (wait_for_previous). "A ends n"
// means that the kernel of call n has ended on rank A.
//   1. A ends n only after every other rank B has begun to push n, as A polled all words of B's
//      part; so after B ended n - 1. Two ranks are never more than a call apart.
//   2. While A works on n, it reads the places of epoch n and clears those of n - 1. Others push n
//      (where it reads), may push n + 1 (1.: A has begun to push n), and not n + 2, as A has not
//      pushed n + 1. The places of n + 2 are those of n - 1: no rank writes where A clears.
//   3. What is pushed to A in n finds kAbsent there: the places of epoch n last held message n - 3,
//      which A cleared in n - 2, and a rank that pushes n has ended n - 1, so by 1. A has ended
//      n - 2. The clearing covers all bytes, as A kept the length of message n - 3, which all ranks
//      share.
//   4. The first calls find what the host filled in, before any rank called.
// A word is 32 bits and moves whole; no order among words is needed, so that all accesses may be
// relaxed. Clearing happens before a peer's write to the same word, which follows from the chain in
// 3.: end of the kernel that clears, push of n - 1 by A, its arrival at the peer, end of that
// kernel, the peer's push of n.
//
// Not all of a message need be sent: what is not polled is not pushed. But a call polls at least a
// word of every other rank (1.), and every word that comes.
//
// A call takes at most as many blocks as run at once, and each pushes all that it has to before it
// polls, or all that precedes what it polls in an order that all ranks share: whatever the peers'
// blocks do, what they wait for has been sent or will be.
#pragma once

#include "rtp_llm/kernels/common/collective/rank_buffers.h"
#include "rtp_llm/kernels/cuda/launch.h"

namespace rtp_llm::cuda {

// What is sent as 0 instead, which is the same number where sums begin with +0.0: float32's -0.0,
// and the pair 0.0 and -0.0 of 16-bit numbers.
constexpr uint32_t kAbsent = 0x80000000U;
constexpr int kEpochs = 3;
// Polls of a thread, of about a microsecond, between two looks at the host's word. All threads look
// at once, over PCIe, which takes a millisecond or two: not while a peer is merely late.
constexpr int kPollsPerLook = 1 << 18;

// -- memory that others write or read ------------------------------------------------------------

__device__ inline void store_to_peer(void* to, const Words4& words) {
  asm volatile("st.relaxed.sys.global.v4.u32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(words.x),
               "r"(words.y), "r"(words.z), "r"(words.w)
               : "memory");
}
__device__ inline Words4 load_from_peers(const void* from) {
  Words4 words;
  asm volatile("ld.relaxed.sys.global.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(words.x), "=r"(words.y), "=r"(words.z), "=r"(words.w)
               : "l"(from)
               : "memory");
  return words;
}
__device__ inline uint32_t load_from_host(const void* from) {
  uint32_t word;
  asm volatile("ld.relaxed.sys.global.u32 %0, [%1];" : "=r"(word) : "l"(from) : "memory");
  return word;
}

__device__ inline uint32_t sendable(uint32_t word) { return word == kAbsent ? 0 : word; }
__device__ inline Words4 sendable(const Words4& words) {
  return {sendable(words.x), sendable(words.y), sendable(words.z), sendable(words.w)};
}
__device__ inline bool any_absent(const Words4& words) {
  return words.x == kAbsent || words.y == kAbsent || words.z == kAbsent || words.w == kAbsent;
}

// -- one call ------------------------------------------------------------------------------------

// What a thread does of it, in this order: make one, begin(), then push(), prepare_next() once, and
// receive(). Messages are counted in packs of 16 bytes.
class RankExchange {
 public:
  // Reads an address, which no kernel writes.
  __device__ explicit RankExchange(const RankBuffers& among)
      : among_(among), own_(buffer(among.rank)) {}

  // Waits for the preceding kernels. The state is read where the last call left it, not from this
  // multiprocessor's cache.
  __device__ void begin() {
    wait_for_previous();
    asm volatile("ld.relaxed.gpu.global.v2.u32 {%0, %1}, [%2];"
                 : "=r"(epoch_), "=r"(last_packs_)
                 : "l"(among_.state)
                 : "memory");
  }

  // To another rank.
  __device__ void push(int rank, int64_t pack, Words4 words) const {
    store_to_peer(buffer(rank) + place(epoch_, among_.rank) + pack * kAccessBytes, sendable(words));
  }

  // Waits for what another rank pushes here. Once the host has ended all waits, returns any
  // content.
  __device__ Words4 receive(int rank, int64_t pack) {
    const char* const from = own_ + place(epoch_, rank) + pack * kAccessBytes;
    for (int polls = 1;; ++polls) {
      const Words4 words = load_from_peers(from);
      if (!any_absent(words) || is_over(polls)) return words;
    }
  }

  // Clears the last call's packs first, first + step, ... below `end`, of all parts.
  __device__ void clear(int64_t first, int64_t end, int64_t step) const {
    constexpr Words4 kNothing = {kAbsent, kAbsent, kAbsent, kAbsent};
    const uint32_t last_epoch = (epoch_ + kEpochs - 1) % kEpochs;
    if (end > last_packs_) end = last_packs_;
    for (int rank = 0; rank < among_.ranks; ++rank) {
      if (rank == among_.rank) continue;  // no place that somebody writes
      auto* const words = reinterpret_cast<Words4*>(own_ + place(last_epoch, rank));
      for (int64_t i = first; i < end; i += step) words[i] = kNothing;
    }
  }

  // Called by all threads of the grid: clears the last call's packs, except the first `cleared`
  // ones, which the caller clears; and advances the state to the next call, after a message of
  // `packs`.
  __device__ void prepare_next(int64_t packs, int64_t cleared = 0) const {
    clear(cleared + int64_t{blockIdx.x} * thread_count() + thread_index(), last_packs_,
          int64_t{gridDim.x} * thread_count());
    // The last block that has read the state writes it: threads have used what they read by now.
    __syncthreads();
    if (thread_index() != 0) return;
    auto* const state = reinterpret_cast<uint32_t*>(among_.state);
    if (atomicAdd(state + 2, 1U) != gridDim.x - 1) return;
    state[0] = (epoch_ + 1) % kEpochs;
    state[1] = static_cast<uint32_t>(packs);
    state[2] = 0;
  }

 protected:
  __device__ char* buffer(int rank) const {
    return reinterpret_cast<char*>(among_.addresses[rank]);
  }

  // Bytes in front of a rank's place in a buffer.
  __device__ int64_t place(uint32_t epoch, int rank) const {
    return (int64_t{epoch} * among_.ranks + rank) * among_.capacity;
  }

  // Whether the host has ended waits, which it is asked now and then; `polls` counts from 1.
  __device__ bool is_over(int polls) {
    if (gave_up_) return true;
    if (polls % kPollsPerLook == 0) {
      const int64_t word = among_.addresses[among_.ranks];
      gave_up_ = load_from_host(reinterpret_cast<const void*>(word)) != 0;
    }
    return false;
  }

  const RankBuffers& among_;  // the kernel's argument
  char* own_;                 // this rank's buffer
  uint32_t epoch_ = 0;

 private:
  uint32_t last_packs_ = 0;
  bool gave_up_ = false;
};

// -- launches ------------------------------------------------------------------------------------

// Lets the next kernel start at once. Where ranks share a GPU it would take the room that another
// rank's call needs, so there it starts once this kernel has begun.
__device__ inline void let_next_start_early(const RankBuffers& among) {
  if (among.max_blocks == 0) let_next_start();
}

// How many of `wanted` blocks to launch: at most as many as run at once.
inline unsigned int grid_of(const RankBuffers& among, int64_t wanted, int blocks_of_each) {
  const int64_t resident = int64_t{multiprocessors()} * blocks_of_each;
  const int64_t most =
      among.max_blocks > 0 && among.max_blocks < resident ? among.max_blocks : resident;
  return static_cast<unsigned int>(wanted < most ? wanted : most);
}

}  // namespace rtp_llm::cuda
