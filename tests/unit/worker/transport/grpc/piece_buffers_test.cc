#include "worker/transport/grpc/piece_buffers.h"

#include <gtest/gtest.h>

#include <cstring>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace kvmesh {
namespace {

std::span<const std::byte> Bytes(const std::string& text) { return std::as_bytes(std::span(text)); }
std::string Text(const grpc::Slice& slice) {
  return std::string(reinterpret_cast<const char*>(slice.begin()), slice.size());
}

TEST(PieceBuffersTest, ASliceIsACopyAndItsBufferIsUsedAgain) {
  PieceBuffers buffers(8);
  const uint8_t* first = nullptr;
  {
    std::string source = "payload";
    const grpc::Slice slice = buffers.Copy(Bytes(source));
    source.assign("changed");
    EXPECT_EQ(Text(slice), "payload");
    first = slice.begin();
    EXPECT_EQ(buffers.idle(), 0u);
  }
  EXPECT_EQ(buffers.idle(), 1u);
  const grpc::Slice next = buffers.Copy(Bytes("ab"));
  EXPECT_EQ(next.begin(), first);
  EXPECT_EQ(Text(next), "ab");
  EXPECT_EQ(buffers.idle(), 0u);
}

TEST(PieceBuffersTest, KeepsAFewIdleAtMost) {
  PieceBuffers buffers(8, /*max_idle=*/2);
  std::vector<grpc::Slice> slices;
  for (int i = 0; i < 5; ++i) slices.push_back(buffers.Copy(Bytes(std::to_string(i))));
  for (int i = 0; i < 5; ++i) EXPECT_EQ(Text(slices[static_cast<size_t>(i)]), std::to_string(i));
  slices.clear();
  EXPECT_EQ(buffers.idle(), 2u);
}

TEST(PieceBuffersTest, SlicesMayOutliveThem) {
  std::optional<PieceBuffers> buffers(std::in_place, 8);
  const grpc::Slice slice = buffers->Copy(Bytes("late"));
  buffers.reset();
  EXPECT_EQ(Text(slice), "late");
}

TEST(PieceBuffersTest, ThreadsDoNotShareABuffer) {
  PieceBuffers buffers(16);
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&buffers, t] {
      for (int i = 0; i < 2000; ++i) {
        const std::string text = std::to_string(t) + ":" + std::to_string(i);
        const grpc::Slice slice = buffers.Copy(Bytes(text));
        ASSERT_EQ(Text(slice), text);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_LE(buffers.idle(), 4u);
}

}  // namespace
}  // namespace kvmesh
