// An EngineObserver that keeps nothing.
#ifndef KVMESH_TESTS_SUPPORT_NULL_OBSERVER_H_
#define KVMESH_TESTS_SUPPORT_NULL_OBSERVER_H_

#include "worker/engine/observer.h"

namespace kvmesh {

class NullObserver : public EngineObserver {
 public:
  void OnResume(uint64_t, const HitTokensBySource&, absl::Duration) override {}
  void OnLossyHits(const HitTokensBySource&) override {}
  void OnMiss(absl::string_view, uint64_t) override {}
  void OnFetch(absl::string_view, absl::string_view, const absl::Status&, uint64_t, absl::Duration) override {}
};

}  // namespace kvmesh

#endif  // KVMESH_TESTS_SUPPORT_NULL_OBSERVER_H_
