// The metrics of one process, with the naming rules checked where they are made.
//
//   prometheus::Counter& hits = metrics.Counter("kvmesh_hit_tokens_total", "Tokens found", {{"tier", "host"}});
//   hits.Increment(16);
#ifndef KVMESH_KVSTORE_SERVICE_METRICS_H_
#define KVMESH_KVSTORE_SERVICE_METRICS_H_

#include <prometheus/counter.h>
#include <prometheus/family.h>
#include <prometheus/gauge.h>
#include <prometheus/histogram.h>
#include <prometheus/registry.h>

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "kvstore/base/mutex.h"

namespace kvmesh {

// Label names and values.
using Labels = std::map<std::string, std::string>;

// Upper bounds of latency histograms, in seconds: 100 us to 10 s.
const std::vector<double>& LatencyBuckets();

// Series of one name. A label set beyond that is counted in one series whose label values are all "_other".
inline constexpr size_t kMaxSeriesPerName = 1024;

// Brings a counter up to a count that is kept elsewhere; never lowers it. Not for one counter from several threads at
// once: collections run one at a time.
void RaiseTo(prometheus::Counter& counter, uint64_t count);

// A callback that is run before each collection, until this object is destroyed. Move-only; may outlive the Metrics.
class CollectHook {
 public:
  CollectHook() = default;
  CollectHook(CollectHook&&) = default;
  // Removes what it held before.
  CollectHook& operator=(CollectHook&& other);
  // Returns when the callback is not running and never will again.
  ~CollectHook();

 private:
  friend class Metrics;
  struct Callbacks;
  CollectHook(std::shared_ptr<Callbacks> callbacks, uint64_t id) : callbacks_(std::move(callbacks)), id_(id) {}
  void Remove();

  std::shared_ptr<Callbacks> callbacks_;
  uint64_t id_ = 0;
};

// Thread safe. A call with the name and labels of an earlier one returns the same object; it lives as long as this.
// Making one takes a lock: keep the reference. Aborts on a programming error: a name that does not begin with `kvmesh_`
// or has other characters than [a-z0-9_], a counter without `_total`, another type with it, an empty help text, a label
// name that Prometheus reserves, or a name used for two types.
class Metrics {
 public:
  Metrics();
  ~Metrics();

  prometheus::Counter& Counter(const std::string& name, const std::string& help, const Labels& labels = {});
  prometheus::Gauge& Gauge(const std::string& name, const std::string& help, const Labels& labels = {});
  // `buckets`: ascending upper bounds; those of the first call for a name and label set count.
  prometheus::Histogram& Histogram(const std::string& name, const std::string& help, const Labels& labels = {},
                                   const std::vector<double>& buckets = LatencyBuckets());

  // Runs `callback` before each collection, to set gauges from state that is kept elsewhere. It must not call Text or
  // OnCollect, nor destroy a hook.
  [[nodiscard]] CollectHook OnCollect(std::function<void()> callback);

  // Everything in Prometheus' text format, after the callbacks ran.
  std::string Text();

 private:
  enum class Type { kCounter, kGauge, kHistogram };
  struct Name {
    Type type;
    void* family = nullptr;  // prometheus::Family of `type`
    size_t series = 0;
  };

  Name& NameOf(const std::string& name, const std::string& help, Type type, const Labels& labels)
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);
  // Adds a series, or finds it.
  template <class T, class... Args>
  T& Series(Name& name, const Labels& labels, const Args&... args) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  prometheus::Registry registry_;
  Mutex mu_;
  std::map<std::string, Name> names_ ABSL_GUARDED_BY(mu_);
  const std::shared_ptr<CollectHook::Callbacks> callbacks_;
};

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_SERVICE_METRICS_H_
