#include "client/generate.h"

#include <algorithm>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvstore/service/grpc_status.h"
#include "kvstore/wire/wire.h"

namespace kvmesh {
namespace {

// The workers' model, and one address that can tokenize for it.
struct ClusterModel {
  CacheIdentity identity;
  std::string worker_address;
};

absl::StatusOr<ClusterModel> FindModel(Client& client) {
  const absl::StatusOr<v1::ListWorkersResponse> workers = client.ListWorkers();
  if (!workers.ok()) return workers.status();
  for (const v1::WorkerStatus& worker : workers->workers()) {
    if (worker.state() == v1::WorkerStatus::STATE_LOST || !worker.info().has_model_identity()) continue;
    absl::StatusOr<CacheIdentity> identity = IdentityFromProto(worker.info().model_identity());
    if (!identity.ok()) return identity.status();
    return ClusterModel{*std::move(identity), worker.info().address()};
  }
  return absl::NotFoundError("no live worker has a model");
}

absl::StatusOr<std::vector<uint32_t>> Tokenize(Client& client, const std::string& address, const std::string& text,
                                               absl::Time deadline) {
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  v1::TokenizeRequest request;
  request.set_text(text);
  v1::TokenizeResponse response;
  const grpc::Status status = client.WorkerAt(address)->Tokenize(&context, request, &response);
  if (!status.ok()) return FromGrpcStatus(status);
  return std::vector<uint32_t>(response.tokens().begin(), response.tokens().end());
}

// One try on the routed worker. `started`: whether there was a token.
absl::Status RunOn(Client& client, const ClusterGenerateRequest& request, const std::vector<uint32_t>& tokens,
                   absl::Time began, absl::Time deadline, ClusterGenerateResult& result, bool& started) {
  v1::GenerateRequest call;
  call.mutable_tokens()->Add(tokens.begin(), tokens.end());
  call.set_max_tokens(request.max_tokens);
  call.set_samples(request.samples);
  call.set_speculate(request.speculate);
  call.set_temperature(request.temperature);
  call.set_top_k(request.top_k);
  call.set_top_p(request.top_p);
  call.set_seed(request.seed);
  call.set_no_cache(request.no_cache);
  call.set_tenant(request.tenant);
  call.set_cache_salt(request.cache_salt);
  call.set_accepted_lossy_formats(request.accepted.bits());
  if (!request.no_cache) *call.mutable_sources() = result.route.sources();
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(deadline));
  const auto reader = client.WorkerAt(result.route.worker_address())->Generate(&context, call);
  result.others.resize(std::max(request.samples, 1u) - 1);
  v1::GenerateResponse response;
  while (reader->Read(&response)) {
    if (response.has_start()) {
      result.worker_id = response.start().worker_id();
      result.prompt_tokens = response.start().prompt_tokens();
      result.computed_tokens = response.start().computed_tokens();
      result.hits = response.start().hits();
    } else if (response.has_token()) {
      if (!std::exchange(started, true)) result.time_to_first_token = absl::Now() - began;
      const v1::GenerateResponse::Token& token = response.token();
      if (token.sample() > result.others.size()) {
        context.TryCancel();
        reader->Finish();
        return absl::InternalError(absl::StrCat("generate: the worker sent sample ", token.sample()));
      }
      GeneratedSample* other = token.sample() == 0 ? nullptr : &result.others[token.sample() - 1];
      (other == nullptr ? result.tokens : other->tokens).push_back(token.id());
      (other == nullptr ? result.text : other->text) += token.text();
      if (other == nullptr && request.on_token) request.on_token(token.id(), token.text());
    } else if (response.has_end()) {
      result.draft_tokens = response.end().draft_tokens();
      result.accepted_drafts = response.end().accepted_drafts();
    }
  }
  return FromGrpcStatus(reader->Finish());
}

}  // namespace

absl::StatusOr<CacheIdentity> ClusterModelIdentity(Client& client) {
  absl::StatusOr<ClusterModel> model = FindModel(client);
  if (!model.ok()) return model.status();
  return std::move(model->identity);
}

absl::StatusOr<ClusterGenerateResult> GenerateOnCluster(Client& client, const ClusterGenerateRequest& request) {
  const absl::Time deadline = absl::Now() + request.timeout;
  absl::StatusOr<ClusterModel> model = FindModel(client);
  if (!model.ok()) return model.status();
  std::vector<uint32_t> tokens = request.tokens;
  if (tokens.empty()) {
    absl::StatusOr<std::vector<uint32_t>> encoded = Tokenize(client, model->worker_address, request.text, deadline);
    if (!encoded.ok()) return encoded.status();
    tokens = *std::move(encoded);
  }
  model->identity.tenant = request.tenant;
  model->identity.cache_salt = request.cache_salt;

  absl::Status last;
  for (int attempt = 0; attempt < 2; ++attempt) {
    const absl::Time began = absl::Now();
    absl::StatusOr<v1::RouteResponse> route =
        client.Route(model->identity, tokens,
                     {.worker_id = request.worker_id, .no_lookup = request.no_cache, .accepted = request.accepted});
    if (!route.ok()) return route.status();
    ClusterGenerateResult result;
    bool started = false;
    result.route = *std::move(route);
    last = RunOn(client, request, tokens, began, deadline, result, started);
    result.total = absl::Now() - began;
    // A placement that the coordinator forgot meanwhile is no error of the generation.
    client.Complete(result.route.placement_id(), result.hits, !last.ok()).IgnoreError();
    if (last.ok()) return result;
    if (!absl::IsUnavailable(last) || started) break;
  }
  return last;
}

}  // namespace kvmesh
