// SPDX-License-Identifier: Apache-2.0
// What HIP 5.2's device libraries lack for clang 22. @local_rocm compiles it for each GPU, in place
// of the library that has the GPU's number.

// Of a GPU that may be newer than the libraries, such as 9402. They only ask whether it is gfx90a
// and whether it is of generation 9 or later.
constant int __oclc_ISA_version = ISA_VERSION;

// As in oclc_daz_opt_off.bc, which clang 22 no longer links: denormal numbers are kept.
constant bool __oclc_daz_opt = false;

// As in hip.bc, likewise. __syncthreads() and __threadfence() of the headers call it.
void __atomic_work_item_fence(uint flags, int order, int scope) {
  if (scope == memory_scope_work_group) {
    if (order == memory_order_acquire) {
      __builtin_amdgcn_fence(__ATOMIC_ACQUIRE, "workgroup");
    } else if (order == memory_order_release) {
      __builtin_amdgcn_fence(__ATOMIC_RELEASE, "workgroup");
    } else {
      __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "workgroup");
    }
  } else if (scope == memory_scope_device) {
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "agent");
  } else {
    __builtin_amdgcn_fence(__ATOMIC_SEQ_CST, "");
  }
}
