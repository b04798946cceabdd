#include "worker/generate/generator.h"

#include <algorithm>
#include <memory>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "kernels/kv_format.h"
#include "kernels/variant.h"

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
                                   "/", std::string(KernelVariantName(CurrentVariant())), ".", kKernelRevision);
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

absl::Status Generator::Run(const GenerateJob& job, const GenerateEvents& events) {
  KVMESH_RETURN_IF_ERROR(CheckGenerateJob(job, model_.config()));
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
  auto sequence = std::make_unique<Sequence>(groups, job.root, !job.no_cache, job.prompt);
  GenerateStart start;
  if (!job.no_cache) {
    const absl::Time now = clock_.Now();
    // Half of the time is left to compute what could not be had.
    const absl::Time load_deadline = now + (job.deadline - now) / 2;
    ResumeResult resumed = resumer_.Resume({.groups = groups,
                                            .root = job.root,
                                            .keys = sequence->keys(),
                                            .tokens = job.prompt.size(),
                                            .sources = job.sources,
                                            .accepted = job.accepted,
                                            .deadline = load_deadline,
                                            .sibling_deadline = std::min(load_deadline, now + options_.sibling_wait)});
    start.hits = resumed.TokensBySource(static_cast<uint32_t>(pools_[0].layout.block_tokens));
    sequence->Adopt(std::move(resumed));
  }
  start.computed_tokens = sequence->computed_tokens();
  if (!events.on_start(start)) return absl::CancelledError("generate: the caller went away");

  const absl::StatusOr<Logits> logits = Prefill(*sequence, start.computed_tokens, job, events);
  if (!logits.ok()) return logits.status();
  Decoder decoder(job, model_.config().eos_ids, events, clock_,
                  [&](std::span<const StepPart> parts) { return Step(parts, job); });
  return decoder.Run(std::move(sequence), logits->row(0));
}

absl::StatusOr<Logits> Generator::Prefill(Sequence& sequence, uint64_t from, const GenerateJob& job,
                                          const GenerateEvents& events) {
  const absl::Time began = clock_.Now();
  const uint64_t end = sequence.tokens().size();
  uint64_t left = end - from;
  queued_tokens_.fetch_add(left);
  absl::StatusOr<Logits> logits;
  for (uint64_t at = from; at < end;) {
    const uint64_t count = std::min<uint64_t>(options_.prefill_chunk, end - at);
    if (clock_.Now() >= job.deadline) {
      logits = absl::DeadlineExceededError("generate: the deadline came first");
    } else if (events.cancelled && events.cancelled()) {
      logits = absl::CancelledError("generate: the caller went away");
    } else {
      const StepPart part{.sequence = &sequence,
                          .from = at,
                          .count = count,
                          .logits = at + count == end ? LogitsWanted::kLast : LogitsWanted::kNone};
      logits = Step({&part, 1}, job);
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

absl::StatusOr<Logits> Generator::Step(std::span<const StepPart> parts, const GenerateJob& job) {
  // What the spans of the batch look at, by part.
  std::vector<Sequence::GroupSlots> slots;
  std::vector<std::vector<std::vector<uint32_t>>> tables;
  std::vector<ForwardSequence> batch;
  for (const StepPart& part : parts) {
    absl::StatusOr<Sequence::GroupSlots> prepared = part.sequence->PrepareSlots(part.from, part.count, job.deadline);
    if (!prepared.ok()) return prepared.status();
    slots.push_back(*std::move(prepared));
    tables.emplace_back();
    for (size_t group = 0; group < part.sequence->groups(); ++group) {
      tables.back().push_back(part.sequence->table(group).ids());
    }
    ForwardSequence& row =
        batch.emplace_back(ForwardSequence{.tokens = std::span(part.sequence->tokens()).subspan(part.from, part.count),
                                           .first_position = static_cast<int64_t>(part.from),
                                           .groups = {},
                                           .logits = part.logits,
                                           .policy = job.policy});
    for (size_t group = 0; group < part.sequence->groups(); ++group) {
      row.groups.push_back({slots.back()[group], tables.back()[group]});
    }
  }
  absl::StatusOr<Logits> logits = model_.Forward(batch, pools_);
  if (!logits.ok()) return logits;
  for (const StepPart& part : parts) part.sequence->MarkWritten(part.from + part.count);
  return logits;
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
