// What the bodies of kernels ask of the machine that runs them. A body is a template over the machine: `Device` here is
// a GPU thread; the tests run the same bodies on the host, thread by thread.
//
//   Thread(), Threads()    index in, and size of, the block of threads; warps are 32 neighbours
//   Block(axis), Blocks()  index of the block (axis 0 or 1); number of blocks on axis 0
//   Shared()               the block's shared memory, aligned to 16
//   Sync(), SyncOr(x)      barrier of the block; SyncOr gives whether x held for any thread
//   Shuffle(x, lane), ShuffleXor(x, mask)  x of another lane of the warp; every lane of the warp takes part
//   CopyAsync16(to, from)  16 bytes from the pool to shared memory, both aligned to 16; there once its group is waited
//   for CopyCommit(), CopyWait<n>()  closes a thread's group of copies; waits until at most n later groups are under
//   way LoadMatrices<Transposed>(regs, at)  ldmatrix.x4: at(lane) is the row of 16 bytes that a lane points at
//   Mma<Element>(c, a, b0, b1)  c += a b, m16n8k16, see kernels/cuda/fragment.h
#ifndef KVMESH_KERNELS_CUDA_MACHINE_H_
#define KVMESH_KERNELS_CUDA_MACHINE_H_

#include <cstddef>
#include <cstdint>

// Marks a body: device code under nvcc, a plain function otherwise.
#ifdef __CUDACC__
#define KVMESH_KERNEL_BODY __device__
// Before a loop whose index chooses among registers.
#define KVMESH_UNROLL _Pragma("unroll")
#else
#define KVMESH_KERNEL_BODY
#define KVMESH_UNROLL
#endif

namespace kvmesh::cuda {

inline constexpr int kWarpThreads = 32;

// Element types of the tensor cores.
struct Bf16 {};
struct F16 {};

#ifdef __CUDACC__

struct Device {
  __device__ static int Thread() { return static_cast<int>(threadIdx.x); }
  __device__ static int Threads() { return static_cast<int>(blockDim.x); }
  __device__ static int64_t Block(int axis) { return axis == 0 ? blockIdx.x : blockIdx.y; }
  __device__ static int64_t Blocks() { return gridDim.x; }
  __device__ static std::byte* Shared() {
    extern __shared__ uint4 kvmesh_shared[];
    return reinterpret_cast<std::byte*>(kvmesh_shared);
  }
  __device__ static void Sync() { __syncthreads(); }
  __device__ static bool SyncOr(bool x) { return __syncthreads_or(x) != 0; }
  template <class T>
  __device__ static T Shuffle(T x, int lane) {
    return __shfl_sync(0xffffffffu, x, lane);
  }
  template <class T>
  __device__ static T ShuffleXor(T x, int mask) {
    return __shfl_xor_sync(0xffffffffu, x, mask);
  }
  __device__ static void CopyAsync16(std::byte* to, const std::byte* from) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(SharedAddress(to)), "l"(from) : "memory");
  }
  __device__ static void CopyCommit() { asm volatile("cp.async.commit_group;" ::: "memory"); }
  template <int kLater>
  __device__ static void CopyWait() {
    asm volatile("cp.async.wait_group %0;" ::"n"(kLater) : "memory");
  }
  template <bool kTransposed, class At>
  __device__ static void LoadMatrices(uint32_t (&regs)[4], At at) {
    const uint32_t row = SharedAddress(at(Thread() % kWarpThreads));
    if constexpr (kTransposed) {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(regs[0]), "=r"(regs[1]), "=r"(regs[2]), "=r"(regs[3])
                   : "r"(row)
                   : "memory");
    } else {
      asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
                   : "=r"(regs[0]), "=r"(regs[1]), "=r"(regs[2]), "=r"(regs[3])
                   : "r"(row)
                   : "memory");
    }
  }
  template <class Element>
  __device__ static void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

 private:
  __device__ static uint32_t SharedAddress(const std::byte* at) {
    return static_cast<uint32_t>(__cvta_generic_to_shared(at));
  }
};

template <>
__device__ inline void Device::Mma<Bf16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

template <>
__device__ inline void Device::Mma<F16>(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  asm volatile(
      "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, "
      "{%0, %1, %2, %3};"
      : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

#endif  // __CUDACC__

}  // namespace kvmesh::cuda

#endif  // KVMESH_KERNELS_CUDA_MACHINE_H_
