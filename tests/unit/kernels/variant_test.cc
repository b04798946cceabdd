#include "kernels/variant.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <cstring>

#include "attention_world.h"
#include "kernels/attention_parts.h"
#ifdef KVMESH_HAVE_HIGHWAY
#include <hwy/highway.h>
#endif

namespace kvmesh {
namespace {

TEST(VariantTest, UsableVariantsHaveNamesAndEndWithTheReference) {
  ASSERT_FALSE(UsableVariants().empty());
  EXPECT_EQ(UsableVariants().back(), KernelVariant::kReference);
  EXPECT_EQ(KernelVariantName(KernelVariant::kReference), "reference");
  EXPECT_EQ(KernelVariantName(KernelVariant::kHighway), "highway");
  EXPECT_EQ(KernelVariantName(KernelVariant::kAvx512), "avx512");
}

TEST(VariantTest, TheChoiceIsBuiltAndStays) {
  const KernelVariant chosen = CurrentVariant();
  EXPECT_NE(std::count(UsableVariants().begin(), UsableVariants().end(), chosen), 0);
  const char* forced = std::getenv("KVMESH_KERNEL");
  if (forced == nullptr) {
    EXPECT_EQ(chosen, UsableVariants().front());
  } else {
    EXPECT_EQ(KernelVariantName(chosen), forced);
  }
  EXPECT_EQ(CurrentVariant(), chosen);
}

// Each death test starts the program afresh, so that nothing has been chosen yet.
class VariantDeathTest : public testing::Test {
 protected:
  VariantDeathTest() { GTEST_FLAG_SET(death_test_style, "threadsafe"); }
};

TEST_F(VariantDeathTest, EnvironmentForcesAVariant) {
  for (KernelVariant variant : UsableVariants()) {
    EXPECT_EXIT(
        {
          setenv("KVMESH_KERNEL", std::string(KernelVariantName(variant)).c_str(), 1);
          std::exit(CurrentVariant() == variant ? 0 : 1);
        },
        testing::ExitedWithCode(0), "");
  }
}

TEST_F(VariantDeathTest, UnknownNameAbortsWithTheList) {
  EXPECT_DEATH(
      {
        setenv("KVMESH_KERNEL", "fastest", 1);
        CurrentVariant();
      },
      "KVMESH_KERNEL=fastest is not one of:.* reference");
}

#ifdef KVMESH_HAVE_HIGHWAY
// Runs one call on the given instruction set, or on the best one for 0.
std::vector<float> AttendOn(int64_t target, const World& w) {
  hwy::SetSupportedTargetsForTest(target);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  std::vector<float> out(w.query.size() + w.rows);
  AttendWith(KernelVariant::kHighway, w.sequences,
             {w.query, 0, w.params, w.pool.view(), std::span(out).first(w.query.size()),
              std::span(out).subspan(w.query.size())});
  hwy::SetSupportedTargetsForTest(0);
  hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  return out;
}

TEST(InstructionSetTest, AllAgreeAndThoseWithFusedMultiplyAddGiveTheSameBits) {
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    std::mt19937_64 random(seed);
    const KvFormat formats[] = {KvFormat::kF32,     KvFormat::kF16,  KvFormat::kBf16,
                                KvFormat::kFp8E4m3, KvFormat::kInt8, KvFormat::kInt4};
    const Case c{.format = formats[random() % 6],
                 .kv_heads = 2,
                 .group = static_cast<int32_t>(1 + random() % 6),
                 .head_dim = static_cast<int32_t>(8 * (1 + random() % 16)),
                 .window = random() % 2 ? 0 : 77,
                 .soft_cap = random() % 2 ? 0.0f : 4.0f,
                 .shares = {{200, 1}, {0, 150}, {90, 3}},
                 .seed = seed};
    SCOPED_TRACE(c.Describe());
    const World w(c);
    const std::vector<float> best = AttendOn(0, w);
    for (int64_t target : hwy::SupportedAndGeneratedTargets()) {
      const std::vector<float> got = AttendOn(target, w);
      if (target == HWY_AVX3 || target == HWY_AVX2) {
        ASSERT_EQ(std::memcmp(best.data(), got.data(), best.size() * sizeof(float)), 0) << hwy::TargetName(target);
      }
      for (size_t i = 0; i < best.size(); ++i) ASSERT_NEAR(best[i], got[i], 2e-5f) << hwy::TargetName(target);
    }
  }
}
#endif

}  // namespace
}  // namespace kvmesh
