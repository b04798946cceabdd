#include "kvstore/block/ticket.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>
#include <numeric>
#include <random>
#include <string>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kvstore/block/key_chain.h"

namespace kvmesh {
namespace {

using ::testing::HasSubstr;

template <class Bytes>
Bytes Counting(uint8_t first) {
  Bytes out;
  std::iota(out.bytes.begin(), out.bytes.end(), first);
  return out;
}

class TicketTest : public ::testing::Test {
 protected:
  TicketTest() {
    ticket_.id = Counting<TicketId>(1);
    ticket_.sender = "worker-a";
    ticket_.sender_incarnation = Counting<Incarnation>(0x21);
    ticket_.receiver = "worker-b";
    ticket_.receiver_incarnation = Counting<Incarnation>(0x41);
    ticket_.root = Counting<RootKey>(0x61);
    ticket_.last_key = Counting<BlockKey>(0x81);
    ticket_.first_block = 3;
    ticket_.block_count = 5;
    ticket_.accepted = LossyFormats(2);
    ticket_.expiry = absl::FromUnixMillis(1'700'000'010'250);
  }

  void ExpectStatus(absl::string_view sealed, absl::StatusCode code, const std::string& part) {
    const absl::Status status = OpenTicket(sealed, key_, now_).status();
    EXPECT_EQ(status.code(), code) << status;
    EXPECT_THAT(std::string(status.message()), HasSubstr(part));
  }
  // `ticket` is sealed with the right key and refused as malformed all the same.
  void ExpectMalformed(const Ticket& ticket, const std::string& part) {
    ExpectStatus(SealTicket(ticket, key_), absl::StatusCode::kInvalidArgument, part);
  }

  Ticket ticket_;
  const TicketKey key_ = DeriveTicketKey("cluster");
  const absl::Time now_ = absl::FromUnixMillis(1'700'000'000'000);
};

TEST_F(TicketTest, SealedBytesAreGolden) {
  EXPECT_EQ(absl::BytesToHexString(SealTicket(ticket_, key_)),
            "4b564d5401000102030405060708090a0b0c0d0e0f100800776f726b65722d612122232425262728292a2b2c2d2e2f30"
            "0800776f726b65722d624142434445464748494a4b4c4d4e4f506162636465666768696a6b6c6d6e6f70"
            "8182838485868788898a8b8c8d8e8f900300000005000000020000000a90e5cf8b010000"
            "7b5e028fe073440e697974524c99aeffcb557a7ddc8b1c202f6c635f0ba4e6ed");
}

TEST_F(TicketTest, OpensToWhatWasSealed) {
  const absl::StatusOr<Ticket> opened = OpenTicket(SealTicket(ticket_, key_), key_, now_);
  ASSERT_TRUE(opened.ok()) << opened.status();
  EXPECT_EQ(*opened, ticket_);
}

TEST_F(TicketTest, AnotherKeyIsDenied) {
  const absl::Status status = OpenTicket(SealTicket(ticket_, key_), DeriveTicketKey("other"), now_).status();
  EXPECT_EQ(status.code(), absl::StatusCode::kPermissionDenied);
}

TEST_F(TicketTest, LifeIsBoundedAtBothEnds) {
  const std::string sealed = SealTicket(ticket_, key_);
  EXPECT_TRUE(OpenTicket(sealed, key_, ticket_.expiry - absl::Milliseconds(1)).ok());
  EXPECT_TRUE(OpenTicket(sealed, key_, ticket_.expiry - kMaxTicketLife).ok());
  for (const absl::Time now : {ticket_.expiry, ticket_.expiry + absl::Hours(1), absl::InfiniteFuture()}) {
    EXPECT_EQ(OpenTicket(sealed, key_, now).status().code(), absl::StatusCode::kDeadlineExceeded);
  }
  const absl::Time early = ticket_.expiry - kMaxTicketLife - absl::Milliseconds(1);
  EXPECT_EQ(OpenTicket(sealed, key_, early).status().code(), absl::StatusCode::kDeadlineExceeded);
}

TEST_F(TicketTest, FieldsOutOfRangeAreMalformed) {
  Ticket bad = ticket_;
  bad.sender = "";
  ExpectMalformed(bad, "sender of 0 bytes");
  bad.sender = std::string(kMaxWorkerIdBytes + 1, 'w');
  ExpectMalformed(bad, "sender of 129 bytes, must be 1 to 128");
  bad = ticket_;
  bad.receiver = "";
  ExpectMalformed(bad, "receiver");
  bad = ticket_;
  bad.block_count = 0;
  ExpectMalformed(bad, "blocks");
  bad.block_count = std::numeric_limits<uint32_t>::max();
  ExpectMalformed(bad, "blocks");
  bad.block_count = kMaxPromptTokens - bad.first_block + 1;
  ExpectMalformed(bad, "blocks");
  bad = ticket_;
  bad.expiry = absl::FromUnixMillis(-1);
  ExpectMalformed(bad, "expiry");
  bad = ticket_;
  bad.block_count = kMaxPromptTokens - bad.first_block;
  EXPECT_TRUE(OpenTicket(SealTicket(bad, key_), key_, now_).ok());
}

TEST_F(TicketTest, WrongMagicVersionOrLengthIsMalformed) {
  std::string bad = SealTicket(ticket_, key_);
  bad[0] ^= 1;
  ExpectStatus(bad, absl::StatusCode::kInvalidArgument, "magic");
  bad = SealTicket(ticket_, key_);
  bad[4] = 2;
  ExpectStatus(bad, absl::StatusCode::kInvalidArgument, "version 2");
  bad = SealTicket(ticket_, key_) + "x";
  ExpectStatus(bad, absl::StatusCode::kInvalidArgument, "length");
  const std::string sealed = SealTicket(ticket_, key_);
  for (size_t size = 0; size < sealed.size(); ++size) {
    ExpectStatus(sealed.substr(0, size), absl::StatusCode::kInvalidArgument, "ticket");
  }
}

TEST_F(TicketTest, AnyFlippedBitIsRefused) {
  const std::string sealed = SealTicket(ticket_, key_);
  for (size_t bit = 0; bit < sealed.size() * 8; ++bit) {
    std::string bad = sealed;
    bad[bit / 8] ^= static_cast<char>(1 << bit % 8);
    const absl::StatusCode code = OpenTicket(bad, key_, now_).status().code();
    EXPECT_TRUE(code == absl::StatusCode::kInvalidArgument || code == absl::StatusCode::kPermissionDenied)
        << "bit " << bit << " " << code;
  }
}

TEST_F(TicketTest, MutatedBytesNeverOpen) {
  constexpr uint32_t kSeed = 5;
  SCOPED_TRACE(absl::StrCat("seed ", kSeed));
  std::mt19937 random(kSeed);
  const std::string sealed = SealTicket(ticket_, key_);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = sealed;
    for (int k = 1 + random() % 4; k > 0; --k) {
      const size_t at = random() % bad.size();
      if (random() % 2 == 0) {
        bad[at] = static_cast<char>(random());
      } else if (random() % 2 == 0) {
        bad.erase(at, random() % 16);
      } else {
        bad.insert(at, random() % 16, static_cast<char>(random()));
      }
    }
    if (bad == sealed) continue;
    ASSERT_FALSE(OpenTicket(bad, key_, now_).ok()) << absl::BytesToHexString(bad);
  }
}

}  // namespace
}  // namespace kvmesh
