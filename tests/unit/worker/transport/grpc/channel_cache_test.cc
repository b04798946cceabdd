#include "worker/transport/grpc/channel_cache.h"

#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "tests/unit/worker/transport/grpc/fetch_world.h"

namespace kvmesh {
namespace {

class ChannelCacheTest : public testing::Test {
 protected:
  ChannelCacheTest()
      : cache_(
            [this](const std::string& address) {
              made_.push_back(address);
              return TestChannel(address);
            },
            2) {}

  std::vector<std::string> made_;
  ChannelCache cache_;
};

TEST_F(ChannelCacheTest, KeepsAChannelPerAddress) {
  const auto a = cache_.Get("127.0.0.1:1");
  const auto b = cache_.Get("127.0.0.1:2");
  EXPECT_NE(a, b);
  EXPECT_EQ(cache_.Get("127.0.0.1:1"), a);
  EXPECT_EQ(made_.size(), 2u);
}

TEST_F(ChannelCacheTest, LeastRecentlyUsedGoesFirst) {
  std::weak_ptr<PeerChannel> a = cache_.Get("127.0.0.1:1");
  std::weak_ptr<PeerChannel> b = cache_.Get("127.0.0.1:2");
  cache_.Get("127.0.0.1:1");
  cache_.Get("127.0.0.1:3");
  EXPECT_FALSE(a.expired());
  EXPECT_TRUE(b.expired());
  EXPECT_EQ(cache_.size(), 2u);
}

TEST_F(ChannelCacheTest, EvictedChannelLivesWhileUsed) {
  const auto a = cache_.Get("127.0.0.1:1");
  cache_.Get("127.0.0.1:2");
  cache_.Get("127.0.0.1:3");
  EXPECT_EQ(a.use_count(), 1);
  EXPECT_NE(cache_.Get("127.0.0.1:1"), a);
}

TEST_F(ChannelCacheTest, ForgetsOnlyTheChannelMeant) {
  const auto old = cache_.Get("127.0.0.1:1");
  cache_.Forget("127.0.0.1:1", old);
  EXPECT_EQ(cache_.size(), 0u);
  const auto fresh = cache_.Get("127.0.0.1:1");
  EXPECT_NE(fresh, old);
  cache_.Forget("127.0.0.1:1", old);
  EXPECT_EQ(cache_.Get("127.0.0.1:1"), fresh);
}

}  // namespace
}  // namespace kvmesh
