// Functions between KVMESH_AVX512_BEGIN and KVMESH_AVX512_END are compiled for AVX-512 with BF16 and VNNI, whatever the
// rest of the program is compiled for. They run after kvmesh::avx512::Supported() has said yes. Standard headers are
// included before, so that nothing shared with the rest of the program uses these instructions.
#ifndef KVMESH_KERNELS_CPU_AVX512_TARGET_H_
#define KVMESH_KERNELS_CPU_AVX512_TARGET_H_

#define KVMESH_PRAGMA(text) _Pragma(#text)
#if defined(__clang__)
#define KVMESH_AVX512_TARGET target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni")
#define KVMESH_AVX512_BEGIN \
  KVMESH_PRAGMA(clang attribute push(__attribute__((KVMESH_AVX512_TARGET)), apply_to = function))
#define KVMESH_AVX512_END _Pragma("clang attribute pop")
#define KVMESH_UNROLL _Pragma("unroll")
#else
#define KVMESH_AVX512_BEGIN \
  _Pragma("GCC push_options") KVMESH_PRAGMA(GCC target("avx512f,avx512bw,avx512dq,avx512vl,avx512bf16,avx512vnni"))
#define KVMESH_AVX512_END _Pragma("GCC pop_options")
#define KVMESH_UNROLL _Pragma("GCC unroll 16")
#endif

#define KVMESH_AVX512_INLINE inline __attribute__((always_inline))

#endif  // KVMESH_KERNELS_CPU_AVX512_TARGET_H_
