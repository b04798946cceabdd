#include "worker/generate/generator.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kernels/kv_format.h"
#include "kernels/variant.h"
#include "worker/model/greedy.h"

namespace kvmesh {
namespace {

// Weight of the newest measurement in the moving average of the prefill rate.
constexpr double kRateWeight = 0.3;
// Shorter prefills say little about the rate.
constexpr uint64_t kMinRateTokens = 32;

}  // namespace

CacheIdentity ModelIdentity(const LlamaModel& model, const BlockLayout& layout) {
  CacheIdentity identity;
  identity.model = "llama";
  identity.model_revision = model.revision();
  identity.numerics = absl::StrCat("fp32/kv-", std::string(KvFormatName(layout.format)), "/", model.row_kernels().name,
                                   "/", std::string(KernelVariantName(CurrentVariant())));
  identity.block_tokens = static_cast<uint32_t>(layout.block_tokens);
  identity.rope = RopeIdentity{.theta = model.config().rope_theta,
                               .rotary_dim = static_cast<uint32_t>(model.config().head_dim),
                               .interleaved = false,
                               .scaling = ""};
  return identity;
}

Generator::Generator(const LlamaModel& model, std::vector<CacheGroup> groups, Resumer& resumer, const Clock& clock,
                     const Options& options)
    : model_(model), groups_(std::move(groups)), resumer_(resumer), clock_(clock), options_(options) {
  for (const CacheGroup& group : groups_) pools_.push_back(group.store->device().view());
}

absl::Status Generator::Check(const GenerateJob& job) const {
  if (job.prompt.empty()) return absl::InvalidArgumentError("tokens: empty, at least 1 is needed");
  if (job.max_tokens == 0 || job.max_tokens > kMaxGenerateTokens) {
    return absl::InvalidArgumentError(
        absl::StrCat("max_tokens: ", job.max_tokens, ", must be 1 to ", kMaxGenerateTokens));
  }
  const absl::Status policy = CheckStreamingPolicy(job.policy, model_.config());
  if (!policy.ok()) return absl::InvalidArgumentError(absl::StrCat("attention_", policy.message()));
  const uint64_t positions =
      static_cast<uint64_t>(job.policy.streams() ? kMaxPositions : model_.config().max_positions);
  if (job.prompt.size() + job.max_tokens > positions) {
    return absl::InvalidArgumentError(absl::StrCat("tokens: ", job.prompt.size(), " of prompt and max_tokens ",
                                                   job.max_tokens, " exceed the model's ", positions, " positions"));
  }
  for (const uint32_t token : job.prompt) {
    if (token >= static_cast<uint32_t>(model_.config().vocab_size)) {
      return absl::InvalidArgumentError(
          absl::StrCat("tokens: id ", token, " is outside the vocabulary of ", model_.config().vocab_size));
    }
  }
  return absl::OkStatus();
}

absl::Status Generator::Run(const GenerateJob& job, const GenerateEvents& events) {
  KVMESH_RETURN_IF_ERROR(Check(job));
  if (runs_.fetch_add(1) >= options_.max_runs) {
    runs_.fetch_sub(1);
    return absl::ResourceExhaustedError(absl::StrCat("generate: the limit of ", options_.max_runs, " runs is reached"));
  }
  const absl::Status status = RunAdmitted(job, events);
  runs_.fetch_sub(1);
  return status;
}

absl::Status Generator::RunAdmitted(const GenerateJob& job, const GenerateEvents& events) {
  const std::vector<CacheGroup> groups = GroupsUnder(job.policy, groups_);
  Sequence sequence(groups, job.root, !job.no_cache, job.prompt);
  GenerateStart start;
  if (!job.no_cache) {
    const absl::Time now = clock_.Now();
    // Half of the time is left to compute what could not be had.
    const absl::Time load_deadline = now + (job.deadline - now) / 2;
    ResumeResult resumed = resumer_.Resume({.groups = groups,
                                            .root = job.root,
                                            .keys = sequence.keys(),
                                            .tokens = job.prompt.size(),
                                            .sources = job.sources,
                                            .accepted = job.accepted,
                                            .deadline = load_deadline,
                                            .sibling_deadline = std::min(load_deadline, now + options_.sibling_wait)});
    start.hits = resumed.TokensBySource(static_cast<uint32_t>(pools_[0].layout.block_tokens));
    sequence.Adopt(std::move(resumed));
  }
  start.computed_tokens = sequence.computed_tokens();
  if (!events.on_start(start)) return absl::CancelledError("generate: the caller went away");

  absl::StatusOr<std::vector<float>> logits = Prefill(sequence, start.computed_tokens, job, events);
  if (!logits.ok()) return logits.status();
  const std::vector<uint32_t>& stops = model_.config().eos_ids;
  for (uint32_t made = 0; made < job.max_tokens; ++made) {
    const uint32_t token = GreedyToken(*logits);
    if (std::find(stops.begin(), stops.end(), token) != stops.end()) break;
    if (!events.on_token(token)) return absl::CancelledError("generate: the caller went away");
    if (made + 1 == job.max_tokens) break;
    if (clock_.Now() >= job.deadline) return absl::DeadlineExceededError("generate: the deadline came first");
    KVMESH_RETURN_IF_ERROR(sequence.Extend({&token, 1}));
    logits = Step(sequence, sequence.tokens().size() - 1, 1, true, job);
    if (!logits.ok()) return logits.status();
  }
  return absl::OkStatus();
}

absl::StatusOr<std::vector<float>> Generator::Prefill(Sequence& sequence, uint64_t from, const GenerateJob& job,
                                                      const GenerateEvents& events) {
  const absl::Time began = clock_.Now();
  const uint64_t end = sequence.tokens().size();
  uint64_t left = end - from;
  queued_tokens_.fetch_add(left);
  absl::StatusOr<std::vector<float>> logits;
  for (uint64_t at = from; at < end;) {
    const uint64_t count = std::min<uint64_t>(options_.prefill_chunk, end - at);
    if (clock_.Now() >= job.deadline) {
      logits = absl::DeadlineExceededError("generate: the deadline came first");
    } else if (events.cancelled && events.cancelled()) {
      logits = absl::CancelledError("generate: the caller went away");
    } else {
      logits = Step(sequence, at, count, at + count == end, job);
    }
    if (!logits.ok()) break;
    queued_tokens_.fetch_sub(count);
    left -= count;
    at += count;
  }
  queued_tokens_.fetch_sub(left);
  if (logits.ok()) NotePrefill(end - from, clock_.Now() - began);
  return logits;
}

absl::StatusOr<std::vector<float>> Generator::Step(Sequence& sequence, uint64_t from, uint64_t count, bool want_logits,
                                                   const GenerateJob& job) {
  const absl::StatusOr<Sequence::GroupSlots> slots = sequence.PrepareSlots(from, count, job.deadline);
  if (!slots.ok()) return slots.status();
  std::vector<std::vector<uint32_t>> tables;
  for (size_t group = 0; group < sequence.groups(); ++group) tables.push_back(sequence.table(group).ids());
  ForwardSequence part{.tokens = std::span(sequence.tokens()).subspan(from, count),
                       .first_position = static_cast<int64_t>(from),
                       .groups = {},
                       .logits = want_logits ? LogitsWanted::kLast : LogitsWanted::kNone,
                       .policy = job.policy};
  for (size_t group = 0; group < tables.size(); ++group) part.groups.push_back({(*slots)[group], tables[group]});
  absl::StatusOr<Logits> logits = model_.Forward({&part, 1}, pools_);
  if (!logits.ok()) return logits.status();
  sequence.MarkWritten(from + count);
  return std::move(logits->values);
}

void Generator::NotePrefill(uint64_t tokens, absl::Duration took) {
  if (tokens < kMinRateTokens || took <= absl::ZeroDuration()) return;
  const double rate = static_cast<double>(tokens) / absl::ToDoubleSeconds(took);
  MutexLock lock(mu_);
  prefill_rate_ = prefill_rate_ == 0 ? rate : (1 - kRateWeight) * prefill_rate_ + kRateWeight * rate;
}

double Generator::prefill_tokens_per_second() const {
  MutexLock lock(mu_);
  return prefill_rate_;
}

}  // namespace kvmesh
