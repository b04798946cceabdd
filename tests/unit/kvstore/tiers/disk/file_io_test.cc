#include "kvstore/tiers/disk/file_io.h"

#include <fcntl.h>
#include <gtest/gtest.h>

#include <thread>

#include "disk_test_util.h"

namespace kvmesh {
namespace {

struct Engine {
  const char* name;
  std::unique_ptr<FileIo> (*make)();
};

class FileIoTest : public testing::TestWithParam<Engine> {
 protected:
  void SetUp() override {
    io_ = GetParam().make();
    if (io_ == nullptr) GTEST_SKIP() << "the kernel refuses this engine";
    fd_ = UniqueFd(::open((dir_.path() + "/file").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    ASSERT_TRUE(fd_.valid());
  }

  // Fills the file so that each 8-byte word is its own index.
  void Fill(uint64_t words) {
    std::vector<uint64_t> data(words);
    for (uint64_t i = 0; i < words; ++i) data[i] = i;
    const iovec part{data.data(), words * 8};
    ASSERT_EQ(io_->Write(fd_.get(), 0, std::span(&part, 1)), static_cast<int64_t>(words * 8));
  }

  TestDir dir_;
  std::unique_ptr<FileIo> io_;
  UniqueFd fd_;
};

TEST_P(FileIoTest, LargeBatchReadsEveryOpOnce) {
  constexpr uint64_t kOps = 500;
  constexpr uint64_t kWords = 64;
  Fill(kOps * kWords);
  std::vector<uint64_t> out(kOps * kWords, ~uint64_t{0});
  std::vector<ReadOp> ops(kOps);
  for (uint64_t i = 0; i < kOps; ++i) {
    ops[i].fd = fd_.get();
    ops[i].offset = i * kWords * 8;
    ops[i].parts[0] = {&out[i * kWords], 8};
    ops[i].parts[1] = {&out[i * kWords + 1], (kWords - 1) * 8};
    ops[i].part_count = 2;
  }
  std::vector<std::atomic<int>> calls(kOps);
  io_->Read(ops, [&](size_t i) {
    EXPECT_EQ(ops[i].result, static_cast<int64_t>(kWords * 8));
    ++calls[i];
  });
  for (uint64_t i = 0; i < kOps; ++i) EXPECT_EQ(calls[i], 1);
  for (uint64_t i = 0; i < out.size(); ++i) ASSERT_EQ(out[i], i);
}

TEST_P(FileIoTest, EndOfFileIsAShortRead) {
  Fill(100);
  std::vector<std::byte> out(4096);
  std::vector<ReadOp> ops(2);
  for (ReadOp& op : ops) {
    op.fd = fd_.get();
    op.parts[0] = {out.data(), out.size()};
    op.part_count = 1;
  }
  ops[1].offset = 8192;
  io_->Read(ops, [](size_t) {});
  EXPECT_EQ(ops[0].result, 800);
  EXPECT_EQ(ops[1].result, 0);
}

TEST_P(FileIoTest, ErrorsComeBackAsNegativeErrno) {
  std::vector<std::byte> out(64);
  std::vector<ReadOp> ops(3);
  for (ReadOp& op : ops) {
    op.parts[0] = {out.data(), out.size()};
    op.part_count = 1;
  }
  io_->Read(ops, [](size_t) {});
  for (const ReadOp& op : ops) EXPECT_EQ(op.result, -EBADF);
  const iovec part{out.data(), out.size()};
  EXPECT_EQ(io_->Write(-1, 0, std::span(&part, 1)), -EBADF);
  EXPECT_EQ(io_->Allocate(-1, 0, 10), -EBADF);
  EXPECT_EQ(io_->FreeBytes(dir_.path() + "/absent"), -ENOENT);
  EXPECT_GT(io_->FreeBytes(dir_.path()), 0);
}

TEST_P(FileIoTest, ManyThreadsReadAtOnce) {
  constexpr uint64_t kWords = 4096;
  Fill(kWords);
  std::vector<std::thread> threads;
  for (int t = 0; t < 24; ++t) {
    threads.emplace_back([&, t] {
      for (int round = 0; round < 20; ++round) {
        std::vector<uint64_t> out(64);
        std::vector<ReadOp> ops(out.size());
        for (size_t i = 0; i < ops.size(); ++i) {
          ops[i].fd = fd_.get();
          ops[i].offset = ((t * 131 + round * 17 + i * 7) % kWords) * 8;
          ops[i].parts[0] = {&out[i], 8};
          ops[i].part_count = 1;
        }
        io_->Read(ops, [&](size_t i) { EXPECT_EQ(out[i] * 8, ops[i].offset); });
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

INSTANTIATE_TEST_SUITE_P(Engines, FileIoTest,
                         testing::Values(Engine{"uring", [] { return NewUringFileIo(); }},
                                         Engine{"threads", [] { return NewThreadFileIo(4); }}),
                         [](const testing::TestParamInfo<Engine>& engine) { return std::string(engine.param.name); });

}  // namespace
}  // namespace kvmesh
