// Reads through io_uring: each batch borrows one ring of a small set and keeps it full until its last completion.
#include <liburing.h>

#include <cerrno>
#include <chrono>
#include <thread>
#include <utility>
#include <vector>

#include "kvstore/base/mutex.h"
#include "kvstore/tiers/disk/posix_file_io.h"

namespace kvmesh {
namespace {

constexpr unsigned kRingEntries = 64;
constexpr size_t kMaxRings = 16;

class Ring {
 public:
  static std::unique_ptr<Ring> Create() {
    auto ring = std::unique_ptr<Ring>(new Ring);
    if (io_uring_queue_init(kRingEntries, &ring->ring_, 0) != 0) return nullptr;
    ring->initialized_ = true;
    return ring;
  }
  ~Ring() {
    if (initialized_) io_uring_queue_exit(&ring_);
  }
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Submits ops and reports completions. Returns the indices that the kernel never took, when submission failed for
  // good; every op that it took has completed then, and the ring may not be used again.
  std::vector<size_t> Run(std::span<ReadOp> ops, absl::FunctionRef<void(size_t)> done) {
    size_t next = 0;
    size_t in_flight = 0;
    while (next < ops.size() || in_flight > 0) {
      while (next < ops.size() && in_flight < kRingEntries) {
        io_uring_sqe* sqe = io_uring_get_sqe(&ring_);
        if (sqe == nullptr) break;
        ReadOp& op = ops[next];
        io_uring_prep_readv(sqe, op.fd, op.parts.data(), static_cast<unsigned>(op.part_count), op.offset);
        io_uring_sqe_set_data64(sqe, next);
        ++next;
        ++in_flight;
      }
      const int rc = io_uring_submit_and_wait(&ring_, 1);
      if (rc < 0 && rc != -EINTR && rc != -EAGAIN && rc != -EBUSY) return Abandon(ops, next, in_flight, done);
      in_flight -= Reap(ops, done);
    }
    return {};
  }

 private:
  Ring() = default;

  size_t Reap(std::span<ReadOp> ops, absl::FunctionRef<void(size_t)> done) {
    size_t reaped = 0;
    io_uring_cqe* cqe = nullptr;
    while (io_uring_peek_cqe(&ring_, &cqe) == 0 && cqe != nullptr) {
      const size_t index = io_uring_cqe_get_data64(cqe);
      ops[index].result = cqe->res;
      io_uring_cqe_seen(&ring_, cqe);
      ++reaped;
      done(index);
    }
    return reaped;
  }

  // Waits for what the kernel took, since it writes into the callers' buffers until then.
  std::vector<size_t> Abandon(std::span<ReadOp> ops, size_t next, size_t in_flight,
                              absl::FunctionRef<void(size_t)> done) {
    const size_t refused = io_uring_sq_ready(&ring_);
    while (in_flight > refused) {
      in_flight -= Reap(ops, done);
      if (in_flight > refused) std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
    std::vector<size_t> left;
    for (size_t i = next - refused; i < ops.size(); ++i) left.push_back(i);
    return left;
  }

  io_uring ring_{};
  bool initialized_ = false;
};

class UringFileIo : public PosixFileIo {
 public:
  explicit UringFileIo(std::unique_ptr<Ring> first) : rings_(1) { idle_.push_back(std::move(first)); }

  void Read(std::span<ReadOp> ops, absl::FunctionRef<void(size_t)> done) override {
    if (ops.empty()) return;
    std::unique_ptr<Ring> ring = ops.size() > 1 ? Borrow() : nullptr;
    if (ring == nullptr) {
      // A single read gains nothing from a ring.
      for (size_t i = 0; i < ops.size(); ++i) ReadHere(ops, i, done);
      return;
    }
    const std::vector<size_t> left = ring->Run(ops, done);
    if (!left.empty()) ring = nullptr;
    Return(std::move(ring));
    for (size_t i : left) ReadHere(ops, i, done);
  }

 private:
  static void ReadHere(std::span<ReadOp> ops, size_t index, absl::FunctionRef<void(size_t)> done) {
    ReadOne(ops[index]);
    done(index);
  }

  // Null when the kernel gives no further ring and none is in use that could come back.
  std::unique_ptr<Ring> Borrow() {
    MutexLock lock(mu_);
    while (idle_.empty()) {
      if (rings_ < kMaxRings && !refused_) {
        if (std::unique_ptr<Ring> ring = Ring::Create()) {
          ++rings_;
          return ring;
        }
        refused_ = true;
      }
      if (rings_ == 0) return nullptr;
      returned_.Wait(lock);
    }
    std::unique_ptr<Ring> ring = std::move(idle_.back());
    idle_.pop_back();
    return ring;
  }

  // Takes a ring back; null stands for one that broke.
  void Return(std::unique_ptr<Ring> ring) {
    MutexLock lock(mu_);
    if (ring != nullptr) {
      idle_.push_back(std::move(ring));
      returned_.NotifyOne();
    } else {
      --rings_;
      returned_.NotifyAll();
    }
  }

  Mutex mu_;
  CondVar returned_;
  std::vector<std::unique_ptr<Ring>> idle_ ABSL_GUARDED_BY(mu_);
  size_t rings_ ABSL_GUARDED_BY(mu_);  // idle and borrowed
  bool refused_ ABSL_GUARDED_BY(mu_) = false;
};

}  // namespace

std::unique_ptr<FileIo> NewUringFileIo() {
  std::unique_ptr<Ring> first = Ring::Create();
  if (first == nullptr) return nullptr;
  return std::make_unique<UringFileIo>(std::move(first));
}

}  // namespace kvmesh
