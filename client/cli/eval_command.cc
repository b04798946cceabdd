// kvmesh eval: what a K/V format, or bounded streaming, costs in the quality of a model's predictions.
#include <unistd.h>

#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/eval.h"
#include "client/cli/inputs.h"
#include "client/cli/progress_line.h"
#include "kvstore/block/attention_policy.h"

namespace kvmesh {
namespace {

struct EvalFlags {
  std::string model_dir;
  std::string tokens_file;
  std::string format = "fp32";
  std::optional<std::string> policy;
  std::optional<int64_t> window_tokens;
  int32_t threads = 1;
  bool json = false;
};

void Print(const EvalFlags& flags, const EvalResult& result) {
  if (!flags.json) {
    std::printf("%llu tokens, %llu predicted\n", static_cast<unsigned long long>(result.tokens),
                static_cast<unsigned long long>(result.predicted));
    std::printf("mean NLL %.6f in %s, %.6f in fp32 (%+.3f %%), largest difference of a logit %.6g\n", result.mean_nll,
                flags.format.c_str(), result.mean_nll_fp32, 100 * (result.mean_nll / result.mean_nll_fp32 - 1),
                result.max_abs_logit_diff);
    return;
  }
  nlohmann::ordered_json out;
  out["tokens"] = result.tokens;
  out["mean_nll"] = result.mean_nll;
  out["mean_nll_fp32"] = result.mean_nll_fp32;
  out["max_abs_logit_diff"] = result.max_abs_logit_diff;
  std::printf("%s\n", out.dump().c_str());
}

absl::StatusOr<int> Run(const EvalFlags& flags) {
  EvalOptions options;
  const absl::StatusOr<KvFormat> format = ParseFormatName(flags.format);
  if (!format.ok()) return format.status();
  options.format = *format;
  if (flags.policy) {
    const absl::StatusOr<StreamingPolicy> policy = ParseAttentionPolicy(*flags.policy);
    if (!policy.ok()) return absl::InvalidArgumentError(absl::StrCat("--policy: ", policy.status().message()));
    options.policy = *policy;
  }
  if (flags.window_tokens) {
    if (*flags.window_tokens < 2) return absl::InvalidArgumentError("--window-tokens: must be at least 2");
    options.window_tokens = *flags.window_tokens;
  }
  const absl::StatusOr<std::vector<uint32_t>> tokens = ReadTokensFile(flags.tokens_file);
  if (!tokens.ok()) return tokens.status();
  const absl::StatusOr<std::unique_ptr<LlamaModel>> model =
      LlamaModel::Load(flags.model_dir, {.threads = flags.threads});
  if (!model.ok()) {
    return absl::Status(model.status().code(), absl::StrCat("--model: ", model.status().message()));
  }
  if (isatty(STDERR_FILENO) != 0) options.progress = ProgressLine("tokens");
  const absl::StatusOr<EvalResult> result = Evaluate(**model, *tokens, options);
  if (!result.ok()) return result.status();
  Print(flags, *result);
  return 0;
}

}  // namespace

void AddEvalCommand(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<EvalFlags>();
  CLI::App* command = app.add_subcommand("eval", "Measure what a K/V format costs in quality, beside fp32");
  command->add_option("--model", flags->model_dir, "Folder of a model to run in this process")
      ->required()
      ->check(CLI::ExistingDirectory);
  command->add_option("--tokens-file", flags->tokens_file, "Text as a file of token ids")->required();
  command->add_option("--kv-format", flags->format, "fp32, fp16, bf16, fp8, int8 or int4");
  command->add_option("--policy", flags->policy,
                      "Bounded streaming over the whole text, in both runs: sinks=4,window=252");
  command->add_option("--window-tokens", flags->window_tokens,
                      "Cut the text into windows of this many tokens (default: the model's positions)");
  command->add_option("--threads", flags->threads, "Threads of the model")->check(CLI::Range(1, kMaxModelThreads));
  command->add_flag("--json", flags->json, "One JSON object on standard output");
  command->callback([flags, &run] { run = [flags] { return Run(*flags); }; });
}

}  // namespace kvmesh
