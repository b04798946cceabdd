// kvmesh generate: generation on a cluster, or in this process with --model.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_replace.h"
#include "absl/strings/strip.h"
#include "client/cli/command.h"
#include "client/cli/inputs.h"
#include "client/generate.h"
#include "kvstore/base/random.h"
#include "worker/generate/generator.h"
#include "worker/server/worker_core.h"

namespace kvmesh {
namespace {

struct GenerateFlags {
  ClusterFlags cluster;
  std::string worker;
  std::string model_dir;
  std::string tokens;
  std::string tokens_file;
  std::string prompt;
  std::optional<std::string> format;
  uint32_t max_tokens = 0;
  uint32_t samples = 1;
  uint32_t speculate = 0;
  SamplingParams sampling;
  std::vector<std::string> accept;
  bool no_cache = false;
  bool json = false;
};

// What was generated, wherever it ran.
struct Generated {
  std::string worker;
  uint64_t prompt_tokens = 0;
  uint64_t computed_tokens = 0;
  v1::HitTokens hits;
  std::vector<uint32_t> tokens;  // of sample 0
  std::string text;
  std::vector<GeneratedSample> others;  // samples 1, 2, ...
  uint64_t draft_tokens = 0;
  uint64_t accepted_drafts = 0;
  absl::Duration time_to_first_token;
  absl::Duration total;
  v1::RouteResponse route;  // on a cluster
};

// Text as it comes; nothing when the answer is one JSON object.
void Stream(const GenerateFlags& flags, absl::string_view text) {
  if (flags.json) return;
  std::fwrite(text.data(), 1, text.size(), stdout);
  std::fflush(stdout);
}

absl::StatusOr<Generated> OnCluster(const GenerateFlags& flags, std::vector<uint32_t> tokens) {
  absl::StatusOr<std::unique_ptr<Client>> client = ConnectCluster(flags.cluster);
  if (!client.ok()) return client.status();
  ClusterGenerateRequest request;
  request.tokens = std::move(tokens);
  request.text = flags.prompt;
  request.max_tokens = flags.max_tokens;
  request.samples = flags.samples;
  request.speculate = flags.speculate;
  request.temperature = flags.sampling.temperature;
  request.top_k = flags.sampling.top_k;
  request.top_p = flags.sampling.top_p;
  request.seed = flags.sampling.seed;
  request.no_cache = flags.no_cache;
  request.worker_id = flags.worker;
  const absl::StatusOr<LossyFormats> accepted = ParseAccepted(flags.accept);
  if (!accepted.ok()) return accepted.status();
  request.accepted = *accepted;
  request.timeout = absl::Minutes(10);
  request.on_token = [&flags](uint32_t, const std::string& text) { Stream(flags, text); };
  absl::StatusOr<ClusterGenerateResult> result = GenerateOnCluster(**client, request);
  if (!result.ok()) return result.status();
  return Generated{.worker = result->worker_id,
                   .prompt_tokens = result->prompt_tokens,
                   .computed_tokens = result->computed_tokens,
                   .hits = result->hits,
                   .tokens = std::move(result->tokens),
                   .text = std::move(result->text),
                   .others = std::move(result->others),
                   .draft_tokens = result->draft_tokens,
                   .accepted_drafts = result->accepted_drafts,
                   .time_to_first_token = result->time_to_first_token,
                   .total = result->total,
                   .route = std::move(result->route)};
}

absl::StatusOr<Generated> InProcess(const GenerateFlags& flags, std::vector<uint32_t> tokens) {
  WorkerOptions options;
  options.worker_id = "local";
  options.model_dir = flags.model_dir;
  options.tls.insecure = true;
  options.max_pinned_fraction = 1.0;
  if (flags.format) {
    const absl::StatusOr<KvFormat> format = ParseFormatName(*flags.format);
    if (!format.ok()) return format.status();
    options.format = *format;
  }
  const absl::StatusOr<std::unique_ptr<WorkerCore>> core =
      WorkerCore::Create(options, NewIncarnation(RandomSource::Real()), {});
  if (!core.ok()) return core.status();
  const absl::StatusOr<RootKey> root = (*core)->RootOf((*core)->OwnIdentity("", ""));
  if (!root.ok()) return root.status();
  const Vocabulary& vocabulary = *(*core)->vocabulary();
  if (tokens.empty()) tokens = vocabulary.Encode(flags.prompt);

  const absl::Time began = absl::Now();
  Generated out;
  out.worker = options.worker_id;
  out.prompt_tokens = tokens.size();
  GenerateEvents events;
  events.on_start = [&](const GenerateStart& start) {
    out.computed_tokens = start.computed_tokens;
    out.hits.set_device(start.hits[static_cast<size_t>(HitSource::kDevice)]);
    return true;
  };
  out.others.resize(flags.samples - 1);
  events.on_token = [&, first = true](uint32_t sample, uint32_t token) mutable {
    if (std::exchange(first, false)) out.time_to_first_token = absl::Now() - began;
    const absl::string_view piece = vocabulary.Piece(token);
    GeneratedSample* other = sample == 0 ? nullptr : &out.others[sample - 1];
    (other == nullptr ? out.tokens : other->tokens).push_back(token);
    (other == nullptr ? out.text : other->text).append(piece.data(), piece.size());
    if (other == nullptr) Stream(flags, piece);
    return true;
  };
  events.on_drafts = [&](uint64_t proposed, uint64_t accepted) {
    out.draft_tokens += proposed;
    out.accepted_drafts += accepted;
  };
  KVMESH_RETURN_IF_ERROR((*core)->generator()->Run({.root = *root,
                                                    .prompt = std::move(tokens),
                                                    .max_tokens = flags.max_tokens,
                                                    .samples = flags.samples,
                                                    .sampling = flags.sampling,
                                                    .speculate = flags.speculate,
                                                    .sources = {},
                                                    .no_cache = flags.no_cache,
                                                    .deadline = absl::InfiniteFuture()},
                                                   events));
  out.total = absl::Now() - began;
  return out;
}

void Print(const GenerateFlags& flags, const Generated& result) {
  if (!flags.json) {
    std::printf("\n");
    for (const GeneratedSample& other : result.others) std::printf("%s\n", other.text.c_str());
    std::fprintf(
        stderr, "%llu prompt tokens, %llu from cache, %zu generated, first after %.1f ms, all after %.1f ms, on %s\n",
        static_cast<unsigned long long>(result.prompt_tokens), static_cast<unsigned long long>(result.computed_tokens),
        result.tokens.size(), absl::ToDoubleMilliseconds(result.time_to_first_token),
        absl::ToDoubleMilliseconds(result.total), result.worker.c_str());
    return;
  }
  nlohmann::ordered_json out;
  out["prompt_tokens"] = result.prompt_tokens;
  out["computed_tokens"] = result.computed_tokens;
  out["hits_by_tier"] = {{"device", result.hits.device()},
                         {"host", result.hits.host()},
                         {"disk", result.hits.disk()},
                         {"peer", result.hits.peer()}};
  out["tokens"] = result.tokens;
  out["text"] = result.text;
  nlohmann::ordered_json& samples = out["samples"] = nlohmann::ordered_json::array();
  samples.push_back({{"tokens", result.tokens}, {"text", result.text}});
  for (const GeneratedSample& other : result.others) {
    samples.push_back({{"tokens", other.tokens}, {"text", other.text}});
  }
  out["draft_tokens"] = result.draft_tokens;
  out["accepted_drafts"] = result.accepted_drafts;
  out["ttft_ms"] = absl::ToDoubleMilliseconds(result.time_to_first_token);
  out["total_ms"] = absl::ToDoubleMilliseconds(result.total);
  out["worker"] = result.worker;
  out["sources"] = nlohmann::ordered_json::array();
  for (const v1::SourceSpan& source : result.route.sources()) {
    out["sources"].push_back({{"peer", source.peer_id()}, {"blocks", source.block_count()}});
  }
  // Generated bytes need not be whole UTF-8.
  std::printf("%s\n", out.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

// A generator names the fields of its request; here they are flags.
absl::Status NameFlags(const GenerateFlags& flags, const absl::Status& status) {
  absl::string_view message = status.message();
  if (!absl::IsInvalidArgument(status)) return status;
  if (absl::ConsumePrefix(&message, "temperature:")) {
    return absl::InvalidArgumentError(absl::StrCat("--temperature:", message));
  }
  if (absl::ConsumePrefix(&message, "top_p:")) return absl::InvalidArgumentError(absl::StrCat("--top-p:", message));
  if (!absl::ConsumePrefix(&message, "tokens:")) return status;
  const char* prompt = !flags.prompt.empty() ? "--prompt" : flags.tokens.empty() ? "--tokens-file" : "--tokens";
  return absl::InvalidArgumentError(
      absl::StrCat(prompt, ":", absl::StrReplaceAll(message, {{"max_tokens", "--max-tokens"}})));
}

absl::StatusOr<int> Run(const GenerateFlags& flags) {
  const bool local = !flags.model_dir.empty();
  if (local == !flags.cluster.coordinators.empty()) {
    return absl::InvalidArgumentError("--coordinator, --model: exactly one must be given");
  }
  if (!local && flags.format) return absl::InvalidArgumentError("--kv-format: needs --model");
  if (local && !flags.worker.empty()) return absl::InvalidArgumentError("--worker: needs --coordinator");
  if ((!flags.tokens.empty()) + (!flags.tokens_file.empty()) + (!flags.prompt.empty()) != 1) {
    return absl::InvalidArgumentError("--tokens, --tokens-file, --prompt: exactly one must be given");
  }
  std::vector<uint32_t> tokens;
  if (flags.prompt.empty()) {
    absl::StatusOr<std::vector<uint32_t>> parsed =
        flags.tokens.empty() ? ReadTokensFile(flags.tokens_file) : ParseTokens(flags.tokens, "--tokens");
    if (!parsed.ok()) return parsed.status();
    tokens = *std::move(parsed);
  }
  const absl::StatusOr<Generated> result =
      local ? InProcess(flags, std::move(tokens)) : OnCluster(flags, std::move(tokens));
  if (!result.ok()) return NameFlags(flags, result.status());
  Print(flags, *result);
  return 0;
}

}  // namespace

void AddGenerateCommand(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<GenerateFlags>();
  CLI::App* command = app.add_subcommand("generate", "Generate, on a cluster or in this process");
  AddClusterFlags(*command, flags->cluster, /*required=*/false);
  command->add_option("--worker", flags->worker, "Run on this worker");
  command->add_option("--model", flags->model_dir, "Folder of a model to run in this process, without servers")
      ->check(CLI::ExistingDirectory);
  command->add_option("--kv-format", flags->format,
                      "With --model: fp32, fp16, bf16, fp8, int8 or int4 K/V (default: fp32)");
  command->add_option("--tokens", flags->tokens, "Prompt as token ids: 1,403");
  command->add_option("--tokens-file", flags->tokens_file, "Prompt as a file of token ids");
  command->add_option("--prompt", flags->prompt, "Prompt as text");
  command->add_option("--max-tokens", flags->max_tokens, "Tokens to generate")
      ->required()
      ->check(CLI::Range(1u, kMaxGenerateTokens));
  command->add_option("--samples", flags->samples, "Answers to the one prompt")->check(CLI::Range(1u, kMaxSamples));
  command->add_option("--temperature", flags->sampling.temperature, "0: the likeliest token; else drawn at random")
      ->check(CLI::Range(0.0, kMaxTemperature));
  command->add_option("--top-k", flags->sampling.top_k, "Draw from so many of the likeliest tokens; 0: from all");
  command->add_option("--top-p", flags->sampling.top_p, "Draw from the likeliest with this probability; 0: from all")
      ->check(CLI::Range(0.0, 1.0));
  command->add_option("--seed", flags->sampling.seed, "Of what is drawn");
  command->add_option("--speculate", flags->speculate, "Drafts that a pass verifies; 0: none")
      ->check(CLI::Range(0u, kMaxSpeculate));
  AddAcceptFlag(*command, flags->accept);
  command->add_flag("--no-cache", flags->no_cache, "Compute everything, publish nothing");
  command->add_flag("--json", flags->json, "One JSON object on standard output");
  command->callback([flags, &run] { run = [flags] { return Run(*flags); }; });
}

}  // namespace kvmesh
