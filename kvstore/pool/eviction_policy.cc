#include "kvstore/pool/eviction_policy.h"

#include <set>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/base/check.h"
#include "kvstore/pool/prefix_map.h"

namespace kvmesh {
namespace {

class LruPolicy : public EvictionPolicy {
 public:
  void Add(BlockCopy* copy, uint64_t last_use) override {
    KVMESH_CHECK(!copy->eviction.evictable, "copy is in the policy already");
    copy->eviction = {.evictable = true, .rank = last_use};
    order_.emplace(last_use, copy);
  }
  void Remove(BlockCopy* copy) override {
    KVMESH_CHECK(copy->eviction.evictable, "copy is not in the policy");
    order_.erase({copy->eviction.rank, copy});
    copy->eviction.evictable = false;
  }
  BlockCopy* Victim() const override { return order_.empty() ? nullptr : order_.begin()->second; }

 private:
  std::set<std::pair<uint64_t, BlockCopy*>> order_;
};

}  // namespace

absl::StatusOr<EvictionPolicyFactory> MakeEvictionPolicyFactory(absl::string_view name) {
  if (name == "lru") return EvictionPolicyFactory([] { return std::make_unique<LruPolicy>(); });
  return absl::InvalidArgumentError(absl::StrCat("policy: unknown \"", name, "\", must be lru"));
}

}  // namespace kvmesh
