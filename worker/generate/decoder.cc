#include "worker/generate/decoder.h"

#include <algorithm>
#include <utility>

#include "worker/generate/ngram_drafter.h"
#include "worker/generate/sampling.h"

namespace kvmesh {

Decoder::Decoder(const GenerateJob& job, std::span<const uint32_t> stops, const GenerateEvents& events,
                 const Clock& clock, StepFunction step)
    : job_(job), stops_(stops), events_(events), clock_(clock), step_(std::move(step)) {}

absl::Status Decoder::Run(std::unique_ptr<Sequence> prompt, std::span<const float> logits) {
  const uint64_t position = prompt->tokens().size();
  for (uint32_t i = 1; i < job_.samples; ++i) {
    absl::StatusOr<std::unique_ptr<Sequence>> fork = prompt->Fork(job_.deadline);
    if (!fork.ok()) return fork.status();
    samples_.push_back({.index = i, .sequence = *std::move(fork), .left = job_.max_tokens});
  }
  samples_.insert(samples_.begin(), Sample{.index = 0, .sequence = std::move(prompt), .left = job_.max_tokens});
  for (Sample& sample : samples_) KVMESH_RETURN_IF_ERROR(Choose(logits, position, sample));
  while (true) {
    std::erase_if(samples_, [](const Sample& sample) { return sample.left == 0; });
    if (samples_.empty()) return absl::OkStatus();
    if (clock_.Now() >= job_.deadline) return absl::DeadlineExceededError("generate: the deadline came first");
    if (events_.cancelled && events_.cancelled()) return absl::CancelledError("generate: the caller went away");
    absl::StatusOr<std::vector<StepPart>> parts = Extend();
    if (!parts.ok()) return parts.status();
    const absl::StatusOr<Logits> rows = StepOrDropDrafts(*parts);
    if (!rows.ok()) return rows.status();
    int64_t row = 0;
    for (size_t i = 0; i < parts->size(); ++i) {
      KVMESH_RETURN_IF_ERROR(Verify((*parts)[i], *rows, row, samples_[i]));
      row += static_cast<int64_t>((*parts)[i].count);
    }
  }
}

absl::Status Decoder::Choose(std::span<const float> logits, uint64_t position, Sample& sample) {
  sample.next = SampleToken(logits, job_.sampling, sample.index, position);
  if (std::find(stops_.begin(), stops_.end(), sample.next) != stops_.end()) {
    sample.left = 0;
    return absl::OkStatus();
  }
  if (!events_.on_token(sample.index, sample.next)) return absl::CancelledError("generate: the caller went away");
  --sample.left;
  return absl::OkStatus();
}

absl::StatusOr<std::vector<StepPart>> Decoder::Extend() {
  std::vector<StepPart> parts;
  for (Sample& sample : samples_) {
    Sequence& sequence = *sample.sequence;
    const uint64_t from = sequence.tokens().size();
    KVMESH_RETURN_IF_ERROR(sequence.Extend({&sample.next, 1}));
    // The choice behind the last draft is reported too.
    const std::vector<uint32_t> drafts =
        DraftByNgram(sequence.tokens(), std::min<size_t>(job_.speculate, sample.left - 1));
    KVMESH_RETURN_IF_ERROR(sequence.ExtendWithDrafts(drafts));
    parts.push_back({.sequence = &sequence, .from = from, .count = 1 + drafts.size(), .logits = LogitsWanted::kAll});
  }
  return parts;
}

absl::StatusOr<Logits> Decoder::StepOrDropDrafts(std::vector<StepPart>& parts) {
  absl::StatusOr<Logits> logits = step_(parts);
  const bool drafted = std::any_of(parts.begin(), parts.end(), [](const StepPart& part) { return part.count > 1; });
  if (!drafted || !absl::IsResourceExhausted(logits.status())) return logits;
  for (StepPart& part : parts) {
    KVMESH_RETURN_IF_ERROR(part.sequence->Accept(part.from + 1));
    part.count = 1;
  }
  return step_(parts);
}

absl::Status Decoder::Verify(const StepPart& part, const Logits& logits, int64_t first_row, Sample& sample) {
  const std::vector<uint32_t>& tokens = part.sequence->tokens();
  uint64_t accepted = 0;
  while (true) {
    const uint64_t position = part.from + accepted + 1;  // of the choice
    KVMESH_RETURN_IF_ERROR(Choose(logits.row(first_row + static_cast<int64_t>(accepted)), position, sample));
    if (sample.left == 0 || accepted + 1 == part.count || sample.next != tokens[position]) break;
    ++accepted;
  }
  if (part.count > 1 && events_.on_drafts) events_.on_drafts(part.count - 1, accepted);
  return part.sequence->Accept(part.from + 1 + accepted);
}

}  // namespace kvmesh
