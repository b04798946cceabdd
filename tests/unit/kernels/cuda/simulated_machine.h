// Runs the bodies of CUDA kernels on the host, see kernels/cuda/machine.h: every GPU thread is a fiber with a stack of
// its own, run until it waits for others. Whose turn it is, and when an asynchronous copy lands, is drawn from a seed,
// so that a missing barrier or wait shows as a wrong value. Ends the process when threads wait for ever, when lanes of
// a warp meet in different operations, and on misaligned matrices and copies.
#ifndef KVMESH_TESTS_UNIT_KERNELS_CUDA_SIMULATED_MACHINE_H_
#define KVMESH_TESTS_UNIT_KERNELS_CUDA_SIMULATED_MACHINE_H_

#include <ucontext.h>

#include <algorithm>
#include <cstring>
#include <deque>
#include <functional>
#include <memory>
#include <random>
#include <type_traits>
#include <vector>

#include "kernels/check.h"
#include "kernels/cuda/machine.h"
#include "kernels/element.h"

#if defined(__SANITIZE_THREAD__)
#include <sanitizer/tsan_interface.h>
#endif

namespace kvmesh::cuda {

class SimulatedBlock;

// The machine as one thread sees it.
class Simulated {
 public:
  Simulated(SimulatedBlock& block, int thread) : block_(&block), thread_(thread) {}
  Simulated(const Simulated&) = delete;

  int Thread() const { return thread_; }
  int Threads() const;
  int64_t Block(int axis) const;
  int64_t Blocks() const;
  std::byte* Shared() const;
  void Sync();
  bool SyncOr(bool x);
  template <class T>
  T Shuffle(T x, int lane) {
    return Read<T>(Exchange(1, x), lane);
  }
  template <class T>
  T ShuffleXor(T x, int mask) {
    return Read<T>(Exchange(2, x), thread_ % kWarpThreads ^ mask);
  }
  void CopyAsync16(std::byte* to, const std::byte* from);
  void CopyCommit();
  template <int kLater>
  void CopyWait() {
    Land(kLater);
  }
  template <bool kTransposed, class At>
  void LoadMatrices(uint32_t (&regs)[4], At at);
  template <class Element>
  void Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1);

 private:
  static constexpr size_t kSlotBytes = 48;
  struct Slot {
    int operation;
    std::byte bytes[kSlotBytes];
  };
  struct Copy {
    std::byte* to;
    const std::byte* from;
  };
  friend class SimulatedBlock;

  // Gives x to the lanes of the warp; returns the slots of all of them.
  template <class T>
  const Slot* Exchange(int operation, const T& x) {
    static_assert(sizeof(T) <= kSlotBytes && std::is_trivially_copyable_v<T>);
    return ExchangeBytes(operation, &x, sizeof(T));
  }
  const Slot* ExchangeBytes(int operation, const void* x, size_t bytes);
  template <class T>
  static T Read(const Slot* slots, int lane) {
    T out;
    std::memcpy(&out, slots[lane & (kWarpThreads - 1)].bytes, sizeof(T));
    return out;
  }
  void Land(size_t later);

  SimulatedBlock* block_;
  int thread_;
  int turn_ = 0;  // of the warp's two sets of slots
  std::deque<std::vector<Copy>> groups_ = std::deque<std::vector<Copy>>(1);
};

// A block of threads.
class SimulatedBlock {
 public:
  using Body = std::function<void(Simulated&)>;

  SimulatedBlock(int threads, size_t shared_bytes, uint64_t seed)
      : threads_(threads),
        random_(seed),
        shared_(shared_bytes / 16 + 1),
        slots_(threads * 2),
        arrived_(1 + threads / kWarpThreads) {
    Require(threads % kWarpThreads == 0, "a block of whole warps");
    for (int t = 0; t < threads; ++t) fibers_.push_back(std::make_unique<Fiber>(*this, t));
  }

  // Runs one block of a grid; the shared memory starts with garbage.
  void Run(int64_t x, int64_t y, int64_t blocks, const Body& body) {
    at_[0] = x, at_[1] = y, blocks_ = blocks, body_ = &body;
    for (Chunk& chunk : shared_) std::memset(&chunk, 0xff, sizeof(chunk));
    ready_.clear();
    for (auto& fiber : fibers_) fiber->Start(), ready_.push_back(fiber.get());
    int running = threads_;
    while (running > 0) {
      Require(!ready_.empty(), "simulated threads wait for ever");
      std::swap(ready_[random_() % ready_.size()], ready_.back());
      current_ = ready_.back();
      ready_.pop_back();
      current_->Resume(scheduler_);
      running -= current_->done ? 1 : 0;
    }
  }

 private:
  friend class Simulated;
  struct alignas(16) Chunk {
    std::byte bytes[16];
  };
  struct Fiber {
    Fiber(SimulatedBlock& block, int thread)
        : owner(block), index(thread), stack(std::make_unique_for_overwrite<std::byte[]>(kStack)) {}
    ~Fiber() {
#if defined(__SANITIZE_THREAD__)
      if (tsan != nullptr) __tsan_destroy_fiber(tsan);
#endif
    }
    void Start() {
      done = false;
      getcontext(&context);
      context.uc_stack.ss_sp = stack.get();
      context.uc_stack.ss_size = kStack;
      context.uc_link = nullptr;
      const auto bits = reinterpret_cast<uintptr_t>(this);
      makecontext(&context, reinterpret_cast<void (*)()>(&Fiber::Enter), 2, static_cast<unsigned>(bits >> 32),
                  static_cast<unsigned>(bits));
    }
    static void Enter(unsigned high, unsigned low) {
      auto* const fiber = reinterpret_cast<Fiber*>(uintptr_t{high} << 32 | low);
      {
        Simulated machine(fiber->owner, fiber->index);
        (*fiber->owner.body_)(machine);
      }
      fiber->done = true;
      fiber->Leave();
    }
    void Resume(ucontext_t& scheduler) {
      back = &scheduler;
#if defined(__SANITIZE_THREAD__)
      if (tsan == nullptr) tsan = __tsan_create_fiber(0);
      tsan_back = __tsan_get_current_fiber();
      __tsan_switch_to_fiber(tsan, 0);
#endif
      swapcontext(&scheduler, &context);
    }
    void Leave() {
#if defined(__SANITIZE_THREAD__)
      __tsan_switch_to_fiber(tsan_back, 0);
#endif
      swapcontext(&context, back);
    }

    static constexpr size_t kStack = size_t{256} << 10;
    SimulatedBlock& owner;
    int index;
    std::unique_ptr<std::byte[]> stack;
    ucontext_t context = {};
    ucontext_t* back = nullptr;
    bool done = false;
#if defined(__SANITIZE_THREAD__)
    void* tsan = nullptr;
    void* tsan_back = nullptr;
#endif
  };

  // Waits until `count` threads are at barrier `index`: 0 is the block's, 1 + w that of warp w.
  void Wait(int index, int count) {
    std::vector<Fiber*>& here = arrived_[index];
    if (static_cast<int>(here.size()) + 1 == count) {
      ready_.insert(ready_.end(), here.begin(), here.end());
      here.clear();
      return;
    }
    Fiber* const self = current_;
    here.push_back(self);
    self->Leave();
  }

  int threads_;
  std::mt19937_64 random_;
  std::vector<Chunk> shared_;
  std::vector<Simulated::Slot> slots_;  // [turn][thread]
  std::vector<std::vector<Fiber*>> arrived_;
  std::vector<std::unique_ptr<Fiber>> fibers_;
  std::vector<Fiber*> ready_;
  Fiber* current_ = nullptr;
  ucontext_t scheduler_ = {};
  int64_t at_[2] = {};
  int64_t blocks_ = 0;
  const Body* body_ = nullptr;
  bool any_[2] = {};
  int any_turn_ = 0;
};

inline int Simulated::Threads() const { return block_->threads_; }
inline int64_t Simulated::Block(int axis) const { return block_->at_[axis]; }
inline int64_t Simulated::Blocks() const { return block_->blocks_; }
inline std::byte* Simulated::Shared() const { return block_->shared_.data()->bytes; }
inline void Simulated::Sync() { block_->Wait(0, block_->threads_); }
inline bool Simulated::SyncOr(bool x) {
  const int turn = block_->any_turn_;
  block_->any_[turn] |= x;
  Sync();
  const bool any = block_->any_[turn];
  Sync();
  if (block_->any_turn_ == turn) {
    block_->any_turn_ = 1 - turn;
    block_->any_[turn] = false;
  }
  Sync();
  return any;
}

inline const Simulated::Slot* Simulated::ExchangeBytes(int operation, const void* x, size_t bytes) {
  const int warp = thread_ / kWarpThreads;
  Slot* const slots = &block_->slots_[turn_ * block_->threads_ + warp * kWarpThreads];
  turn_ = 1 - turn_;
  slots[thread_ % kWarpThreads].operation = operation;
  std::memcpy(slots[thread_ % kWarpThreads].bytes, x, bytes);
  block_->Wait(1 + warp, kWarpThreads);
  for (int lane = 0; lane < kWarpThreads; ++lane) {
    Require(slots[lane].operation == operation, "simulated lanes meet in different operations");
  }
  return slots;
}

inline void Simulated::CopyAsync16(std::byte* to, const std::byte* from) {
  Require(reinterpret_cast<uintptr_t>(to) % 16 == 0 && reinterpret_cast<uintptr_t>(from) % 16 == 0,
          "a simulated copy is not aligned to 16");
  if (block_->random_() % 2 == 0) {
    std::memcpy(to, from, 16);
  } else {
    groups_.back().push_back({to, from});
  }
}
inline void Simulated::CopyCommit() { groups_.emplace_back(); }
inline void Simulated::Land(size_t later) {
  while (groups_.size() > later + 1) {
    for (const Copy& copy : groups_.front()) std::memcpy(copy.to, copy.from, 16);
    groups_.pop_front();
  }
}

template <bool kTransposed, class At>
void Simulated::LoadMatrices(uint32_t (&regs)[4], At at) {
  const int lane = thread_ % kWarpThreads;
  const auto element = [&](int matrix, int row, int column) {
    const std::byte* const from = at(8 * matrix + row);
    Require(reinterpret_cast<uintptr_t>(from) % 16 == 0, "a simulated matrix row is not aligned to 16");
    uint16_t out;
    std::memcpy(&out, from + 2 * column, 2);
    return uint32_t{out};
  };
  for (int k = 0; k < 4; ++k) {
    const int a = lane / 4, b = lane % 4 * 2;
    regs[k] =
        kTransposed ? element(k, b, a) | element(k, b + 1, a) << 16 : element(k, a, b) | element(k, a, b + 1) << 16;
  }
}

// The fragments as the PTX manual has them for m16n8k16 and 16-bit elements, written out by element.
template <class Element>
void Simulated::Mma(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  struct Operands {
    uint32_t a[4];
    uint32_t b[2];
  };
  const Slot* const slots = Exchange(3, Operands{{a[0], a[1], a[2], a[3]}, {b0, b1}});
  const auto value = [](uint32_t pair, int index) {
    const uint16_t bits = static_cast<uint16_t>(pair >> (16 * index));
    return std::is_same_v<Element, Bf16> ? F32FromBf16(bits) : F32FromF16(bits);
  };
  const int lane = thread_ % kWarpThreads;
  for (int i = 0; i < 4; ++i) {
    const int row = lane / 4 + (i < 2 ? 0 : 8), column = lane % 4 * 2 + i % 2;
    double sum = c[i];
    for (int k = 0; k < 16; ++k) {
      const Operands from_a = Read<Operands>(slots, row % 8 * 4 + k % 8 / 2);
      const Operands from_b = Read<Operands>(slots, column * 4 + k % 8 / 2);
      sum +=
          double{value(from_a.a[(row < 8 ? 0 : 1) + (k < 8 ? 0 : 2)], k % 2)} * value(from_b.b[k < 8 ? 0 : 1], k % 2);
    }
    c[i] = static_cast<float>(sum);
  }
}

// Runs body(machine) for every thread of a grid of x by y blocks.
inline void Simulate(int64_t x, int64_t y, int threads, size_t shared_bytes, uint64_t seed,
                     const SimulatedBlock::Body& body) {
  SimulatedBlock block(threads, shared_bytes, seed);
  for (int64_t j = 0; j < y; ++j) {
    for (int64_t i = 0; i < x; ++i) block.Run(i, j, x, body);
  }
}

}  // namespace kvmesh::cuda

#endif  // KVMESH_TESTS_UNIT_KERNELS_CUDA_SIMULATED_MACHINE_H_
