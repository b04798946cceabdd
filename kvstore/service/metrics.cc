#include "kvstore/service/metrics.h"

#include <prometheus/text_serializer.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <sstream>
#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/string_view.h"

namespace kvmesh {
namespace {

constexpr char kOther[] = "_other";

[[noreturn]] void Misuse(const std::string& name, const char* what) {
  std::fprintf(stderr, "metric %s: %s\n", name.c_str(), what);
  std::abort();
}

bool IsLowerName(absl::string_view name) {
  if (name.empty() || (name[0] >= '0' && name[0] <= '9')) return false;
  return std::all_of(name.begin(), name.end(),
                     [](char c) { return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_'; });
}

void CheckNames(const std::string& name, const std::string& help, bool counter, const Labels& labels) {
  if (!absl::StartsWith(name, "kvmesh_") || !IsLowerName(name)) Misuse(name, "must be kvmesh_ and [a-z0-9_]");
  if (counter != absl::EndsWith(name, "_total")) Misuse(name, "counters and only counters end in _total");
  for (const char* suffix : {"_count", "_sum", "_bucket"}) {
    if (absl::EndsWith(name, suffix)) Misuse(name, "ends in a suffix that histograms use");
  }
  if (help.empty()) Misuse(name, "needs a help text");
  for (const auto& [label, value] : labels) {
    if (!IsLowerName(label) || absl::StartsWith(label, "__") || label == "le" || label == "quantile") {
      Misuse(name, "a label name must be [a-z_][a-z0-9_]* and not reserved");
    }
  }
}

}  // namespace

const std::vector<double>& LatencyBuckets() {
  static const auto* const buckets = new std::vector<double>{0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025,
                                                             0.05,   0.1,     0.25,   0.5,   1,      2.5,   5,    10};
  return *buckets;
}

void RaiseTo(prometheus::Counter& counter, uint64_t count) {
  const double behind = static_cast<double>(count) - counter.Value();
  if (behind > 0) counter.Increment(behind);
}

struct CollectHook::Callbacks {
  Mutex mu;
  std::map<uint64_t, std::function<void()>> by_id ABSL_GUARDED_BY(mu);
  uint64_t next_id ABSL_GUARDED_BY(mu) = 1;
};

CollectHook& CollectHook::operator=(CollectHook&& other) {
  if (this != &other) {
    Remove();
    callbacks_ = std::move(other.callbacks_);
    id_ = other.id_;
  }
  return *this;
}

CollectHook::~CollectHook() { Remove(); }

void CollectHook::Remove() {
  if (callbacks_ == nullptr) return;
  MutexLock lock(callbacks_->mu);
  callbacks_->by_id.erase(id_);
}

Metrics::Metrics() : callbacks_(std::make_shared<CollectHook::Callbacks>()) {}

Metrics::~Metrics() {
  MutexLock lock(callbacks_->mu);
  callbacks_->by_id.clear();
}

Metrics::Name& Metrics::NameOf(const std::string& name, const std::string& help, Type type, const Labels& labels) {
  CheckNames(name, help, type == Type::kCounter, labels);
  const auto [found, added] = names_.try_emplace(name, Name{type});
  Name& entry = found->second;
  if (entry.type != type) Misuse(name, "used for two types");
  if (!added) return entry;
  switch (type) {
    case Type::kCounter:
      entry.family = &prometheus::BuildCounter().Name(name).Help(help).Register(registry_);
      break;
    case Type::kGauge:
      entry.family = &prometheus::BuildGauge().Name(name).Help(help).Register(registry_);
      break;
    case Type::kHistogram:
      entry.family = &prometheus::BuildHistogram().Name(name).Help(help).Register(registry_);
      break;
  }
  return entry;
}

template <class T, class... Args>
T& Metrics::Series(Name& name, const Labels& labels, const Args&... args) {
  auto& family = *static_cast<prometheus::Family<T>*>(name.family);
  if (!family.Has(labels)) {
    if (name.series >= kMaxSeriesPerName) {
      Labels other = labels;
      for (auto& [label, value] : other) value = kOther;
      return family.Add(other, args...);
    }
    ++name.series;
  }
  return family.Add(labels, args...);
}

prometheus::Counter& Metrics::Counter(const std::string& name, const std::string& help, const Labels& labels) {
  MutexLock lock(mu_);
  return Series<prometheus::Counter>(NameOf(name, help, Type::kCounter, labels), labels);
}

prometheus::Gauge& Metrics::Gauge(const std::string& name, const std::string& help, const Labels& labels) {
  MutexLock lock(mu_);
  return Series<prometheus::Gauge>(NameOf(name, help, Type::kGauge, labels), labels);
}

prometheus::Histogram& Metrics::Histogram(const std::string& name, const std::string& help, const Labels& labels,
                                          const std::vector<double>& buckets) {
  if (buckets.empty() || !std::is_sorted(buckets.begin(), buckets.end(), std::less_equal<>())) {
    Misuse(name, "buckets must ascend");
  }
  MutexLock lock(mu_);
  return Series<prometheus::Histogram>(NameOf(name, help, Type::kHistogram, labels), labels, buckets);
}

CollectHook Metrics::OnCollect(std::function<void()> callback) {
  MutexLock lock(callbacks_->mu);
  const uint64_t id = callbacks_->next_id++;
  callbacks_->by_id.emplace(id, std::move(callback));
  return CollectHook(callbacks_, id);
}

std::string Metrics::Text() {
  {
    MutexLock lock(callbacks_->mu);
    for (const auto& [id, callback] : callbacks_->by_id) callback();
  }
  std::ostringstream out;
  prometheus::TextSerializer().Serialize(out, registry_.Collect());
  return out.str();
}

}  // namespace kvmesh
