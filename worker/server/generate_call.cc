// Generate and Tokenize.
#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "kvstore/block/attention_policy.h"
#include "kvstore/service/trace_context.h"
#include "kvstore/wire/wire.h"
#include "worker/server/decode.h"
#include "worker/server/worker_service.h"

namespace kvmesh {
namespace {

// Encoding takes some 40 bytes of memory for each byte of text, and a second for some millions of them.
constexpr uint64_t kMaxTextBytes = uint64_t{4} << 20;
constexpr int kMaxEncodings = 8;

}  // namespace

absl::StatusOr<std::vector<uint32_t>> WorkerService::Encode(const std::string& text, uint64_t max_tokens) {
  const Vocabulary& vocabulary = *core_.vocabulary();
  const uint64_t limit = std::min(kMaxTextBytes, max_tokens * vocabulary.longest_piece_bytes());
  if (text.size() > limit) {
    return absl::InvalidArgumentError(absl::StrCat("text: ", text.size(), " bytes, the limit is ", limit));
  }
  if (encodings_.fetch_add(1) >= kMaxEncodings) {
    encodings_.fetch_sub(1);
    return absl::ResourceExhaustedError(
        absl::StrCat("texts being encoded: the limit of ", kMaxEncodings, " is reached"));
  }
  std::vector<uint32_t> tokens = vocabulary.Encode(text);
  encodings_.fetch_sub(1);
  return tokens;
}

grpc::Status WorkerService::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                     grpc::ServerWriter<v1::GenerateResponse>* writer) {
  SlowCallLog call("worker", "Generate", *context, core_.options().slow_call);
  return call.Finish(GenerateInto(*context, *request, *writer));
}

grpc::Status WorkerService::Tokenize(grpc::ServerContext* context, const v1::TokenizeRequest* request,
                                     v1::TokenizeResponse* response) {
  SlowCallLog call("worker", "Tokenize", *context, core_.options().slow_call);
  if (core_.vocabulary() == nullptr) {
    return call.Finish(absl::FailedPreconditionError("tokenize: this worker has no model"));
  }
  const absl::StatusOr<std::vector<uint32_t>> tokens = Encode(request->text(), kMaxPromptTokens);
  if (!tokens.ok()) return call.Finish(tokens.status());
  if (!tokens->empty()) {
    if (const absl::Status status = CheckTokenCount(tokens->size(), "text"); !status.ok()) return call.Finish(status);
  }
  response->mutable_tokens()->Add(tokens->begin(), tokens->end());
  return call.Finish(absl::OkStatus());
}

absl::Status WorkerService::GenerateInto(grpc::ServerContext& context, const v1::GenerateRequest& request,
                                         grpc::ServerWriter<v1::GenerateResponse>& writer) {
  KVMESH_RETURN_IF_ERROR(CheckOpen());
  Generator* generator = core_.generator();
  if (generator == nullptr) return absl::FailedPreconditionError("generate: this worker has no model");
  if ((request.tokens_size() > 0) == !request.text().empty()) {
    return absl::InvalidArgumentError("tokens, text: exactly one must be set");
  }
  std::string tenant = request.tenant();
  if (!core_.options().tls.insecure) {
    absl::StatusOr<std::string> certified = CallerOf(context);
    if (!certified.ok()) return certified.status();
    tenant = *std::move(certified);
  }
  const absl::StatusOr<StreamingPolicy> policy = ParseAttentionPolicy(request.attention_policy());
  if (!policy.ok()) return policy.status();
  const CacheIdentity identity = core_.OwnIdentity(tenant, request.cache_salt(), request.attention_policy());
  KVMESH_RETURN_IF_ERROR(ValidateIdentity(identity));
  const absl::StatusOr<RootKey> root = core_.RootOf(identity);
  if (!root.ok()) return root.status();
  absl::StatusOr<std::vector<PeerSource>> sources = SourcesFromProto(request.sources());
  if (!sources.ok()) return sources.status();

  const Clock& clock = *core_.options().clock;
  const absl::Time began = clock.Now();
  std::vector<uint32_t> prompt(request.tokens().begin(), request.tokens().end());
  if (!request.text().empty()) {
    absl::StatusOr<std::vector<uint32_t>> encoded = Encode(request.text(), generator->max_positions());
    if (!encoded.ok()) return encoded.status();
    prompt = *std::move(encoded);
  }
  GenerateJob job{.root = *root,
                  .policy = *policy,
                  .prompt = std::move(prompt),
                  .max_tokens = request.max_tokens(),
                  .samples = std::max(request.samples(), 1u),
                  .sampling = {.temperature = request.temperature(),
                               .top_k = request.top_k(),
                               .top_p = request.top_p(),
                               .seed = request.seed()},
                  .speculate = request.speculate(),
                  .sources = *std::move(sources),
                  .accepted = LossyFormats(request.accepted_lossy_formats()),
                  .no_cache = request.no_cache(),
                  .deadline = CallDeadline(context, clock)};
  const uint64_t prompt_tokens = job.prompt.size();
  uint64_t to_compute = 0;
  bool first = true;
  GenerateEvents events;
  events.on_start = [&](const GenerateStart& start) {
    to_compute = prompt_tokens - start.computed_tokens;
    v1::GenerateResponse response;
    v1::GenerateResponse::Start* out = response.mutable_start();
    out->set_worker_id(core_.options().worker_id);
    out->set_prompt_tokens(prompt_tokens);
    out->set_computed_tokens(start.computed_tokens);
    HitsToProto(start.hits, *out->mutable_hits());
    return writer.Write(response);
  };
  events.on_token = [&](uint32_t sample, uint32_t token) {
    if (std::exchange(first, false)) core_.worker_metrics().OnGenerate(to_compute, clock.Now() - began);
    v1::GenerateResponse response;
    response.mutable_token()->set_sample(sample);
    response.mutable_token()->set_id(token);
    response.mutable_token()->set_text(std::string(core_.vocabulary()->Piece(token)));
    return writer.Write(response);
  };
  v1::GenerateResponse last;
  v1::GenerateResponse::End& end = *last.mutable_end();
  events.on_drafts = [&](uint64_t proposed, uint64_t accepted) {
    core_.worker_metrics().OnDrafts(proposed, accepted);
    end.set_draft_tokens(end.draft_tokens() + proposed);
    end.set_accepted_drafts(end.accepted_drafts() + accepted);
  };
  events.cancelled = [&context] { return context.IsCancelled(); };
  const StreamCalls::Watch watch(calls_, context, job.deadline);
  const absl::Status status = generator->Run(job, events);
  // A run that stops at once has computed its prompt all the same.
  if (status.ok() && first) core_.worker_metrics().OnGenerate(to_compute, clock.Now() - began);
  if (status.ok() && !writer.Write(last)) return absl::CancelledError("generate: the caller went away");
  return status;
}

}  // namespace kvmesh
