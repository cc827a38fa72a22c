// Products of a warpgroup in the shapes of mla_decode.cu; see hopper.h. Only for sm_90a.
#pragma once

#include "rtp_llm/kernels/cuda/hopper.h"

namespace rtp_llm::cuda::hopper {

#define RTP_LLM_8(d, i)                                                                       \
  "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3]), "+f"(d[i + 4]), "+f"(d[i + 5]), \
      "+f"(d[i + 6]), "+f"(d[i + 7])
#define RTP_LLM_32(d, i) \
  RTP_LLM_8(d, i), RTP_LLM_8(d, i + 8), RTP_LLM_8(d, i + 16), RTP_LLM_8(d, i + 24)
#define RTP_LLM_128(d) RTP_LLM_32(d, 0), RTP_LLM_32(d, 32), RTP_LLM_32(d, 64), RTP_LLM_32(d, 96)
#define RTP_LLM_NAMES_32                                                                       \
  "%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24," \
  "%25,%26,%27,%28,%29,%30,%31"
#define RTP_LLM_NAMES_128                                                                        \
  RTP_LLM_NAMES_32                                                                               \
  ",%32,%33,%34,%35,%36,%37,%38,%39,%40,%41,%42,%43,%44,%45,%46,%47,%48,%49,%50,%51,%52,%53,"    \
  "%54,%55,%56,%57,%58,%59,%60,%61,%62,%63,%64,%65,%66,%67,%68,%69,%70,%71,%72,%73,%74,%75,%76," \
  "%77,%78,%79,%80,%81,%82,%83,%84,%85,%86,%87,%88,%89,%90,%91,%92,%93,%94,%95,%96,%97,%98,%99," \
  "%100,%101,%102,%103,%104,%105,%106,%107,%108,%109,%110,%111,%112,%113,%114,%115,%116,%117,"   \
  "%118,%119,%120,%121,%122,%123,%124,%125,%126,%127"
#define RTP_LLM_PRODUCTS(T, name)                                                         \
  /* d [64, 64], a and b in shared memory, both with rows along the summed dimension. */  \
  __device__ inline void multiply(float (&d)[32], uint64_t a, uint64_t b, bool add, T) {  \
    asm volatile(                                                                         \
        "{\n.reg .pred add;\nsetp.ne.b32 add, %34, 0;\n"                                  \
        "wgmma.mma_async.sync.aligned.m64n64k16.f32." name "." name " {" RTP_LLM_NAMES_32 \
        "}, %32, %33, add, 1, 1, 0, 0;\n}"                                                \
        : RTP_LLM_32(d, 0)                                                                \
        : "l"(a), "l"(b), "r"(static_cast<int>(add)));                                    \
  }                                                                                       \
  /* d [64, 256], a in shared memory as above; b is [16, 256], its rows across. */        \
  __device__ inline void multiply(float (&d)[128], uint64_t a, uint64_t b, T) {           \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name             \
                 " {" RTP_LLM_NAMES_128 "}, %128, %129, 1, 1, 1, 0, 1;"                   \
                 : RTP_LLM_128(d)                                                         \
                 : "l"(a), "l"(b));                                                       \
  }                                                                                       \
  /* The same with a in registers, two elements in each. */                               \
  __device__ inline void multiply(float (&d)[128], const uint32_t* a, uint64_t b, T) {    \
    asm volatile("wgmma.mma_async.sync.aligned.m64n256k16.f32." name "." name             \
                 " {" RTP_LLM_NAMES_128 "}, {%128,%129,%130,%131}, %132, 1, 1, 1, 1;"     \
                 : RTP_LLM_128(d)                                                         \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                   \
  }
RTP_LLM_PRODUCTS(BFloat16, "bf16")
RTP_LLM_PRODUCTS(Float16, "f16")
#undef RTP_LLM_8
#undef RTP_LLM_32
#undef RTP_LLM_128
#undef RTP_LLM_NAMES_32
#undef RTP_LLM_NAMES_128
#undef RTP_LLM_PRODUCTS

}  // namespace rtp_llm::cuda::hopper
