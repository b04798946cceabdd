// kvmesh plan: the K/V memory that a model's sequences take.
#include <cstdio>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/str_cat.h"
#include "client/cli/command.h"
#include "client/cli/inputs.h"
#include "client/cli/plan.h"
#include "kernels/kv_format.h"

namespace kvmesh {
namespace {

struct PlanFlags {
  std::string model;
  std::string format;  // empty: the model's dtype
  std::optional<uint64_t> memory;
  bool json = false;
  PlanOptions options;
};

std::string AttentionName(const GroupPlan& group) {
  return group.window == 0 ? "full" : absl::StrCat("window(", group.window, ")");
}

// How shards divide the state.
std::string ShardText(const ModelShape& shape, const PlanOptions& options, const Plan& plan) {
  if (options.shards == 1) return "1 shard";
  if (shape.mla()) return absl::StrCat(options.shards, " shards, each with a copy of the whole MLA state");
  std::string text =
      absl::StrCat(options.shards, " shards of ", plan.kv_heads_per_shard, " out of ", shape.kv_heads, " K/V heads");
  if (plan.copies > 1) absl::StrAppend(&text, ", each head stored ", plan.copies, " times");
  return text;
}

template <class Json>
void AddCost(const PlanCost& cost, Json& out) {
  out["bytes_per_token"] = cost.bytes_per_token;
  out["bytes_per_block"] = cost.bytes_per_block;
  out["bytes_per_sequence"] = cost.bytes_per_sequence;
  out["total_bytes"] = cost.total_bytes;
  out["sequences_that_fit"] = nullptr;
  if (cost.sequences_that_fit) out["sequences_that_fit"] = *cost.sequences_that_fit;
}

void PrintJson(const ModelShape& shape, const PlanOptions& options, const Plan& plan) {
  nlohmann::ordered_json out;
  out["model_type"] = shape.model_type;
  out["kv_format"] = std::string(KvFormatName(options.format));
  out["block_tokens"] = options.block_tokens;
  out["context"] = options.context;
  out["sequences"] = options.sequences;
  out["tp"] = options.shards;
  out["kv_heads_per_shard"] = plan.kv_heads_per_shard;
  out["copies"] = plan.copies;
  out["memory"] = nullptr;
  if (options.memory) out["memory"] = *options.memory;
  AddCost(plan.total, out);
  out["groups"] = nlohmann::ordered_json::array();
  for (const GroupPlan& group : plan.groups) {
    nlohmann::ordered_json entry;
    entry["group"] = out["groups"].size();
    entry["attention"] = AttentionName(group);
    entry["layers"] = group.layers;
    entry["blocks_per_sequence"] = group.blocks_per_sequence;
    AddCost(group.cost, entry);
    out["groups"].push_back(std::move(entry));
  }
  std::printf("%s\n", out.dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace).c_str());
}

void PrintRow(const std::string& name, const std::string& layers, const std::string& blocks, const PlanCost& cost) {
  const std::string fit = cost.sequences_that_fit ? absl::StrCat(*cost.sequences_that_fit) : "-";
  std::printf("%-18s %6s %8s %12lld %12lld %15lld %18lld %9s\n", name.c_str(), layers.c_str(), blocks.c_str(),
              static_cast<long long>(cost.bytes_per_token), static_cast<long long>(cost.bytes_per_block),
              static_cast<long long>(cost.bytes_per_sequence), static_cast<long long>(cost.total_bytes), fit.c_str());
}

void Print(const ModelShape& shape, const PlanOptions& options, const Plan& plan) {
  std::printf("%lld sequences of %lld tokens, %s, blocks of %d tokens, %s\n\n",
              static_cast<long long>(options.sequences), static_cast<long long>(options.context),
              std::string(KvFormatName(options.format)).c_str(), options.block_tokens,
              ShardText(shape, options, plan).c_str());
  std::printf("%-18s %6s %8s %12s %12s %15s %18s %9s\n", "group", "layers", "blocks", "bytes/token", "bytes/block",
              "bytes/sequence", "total bytes", "that fit");
  for (size_t i = 0; i < plan.groups.size(); ++i) {
    const GroupPlan& group = plan.groups[i];
    PrintRow(absl::StrCat(i, " ", AttentionName(group)), absl::StrCat(group.layers),
             absl::StrCat(group.blocks_per_sequence), group.cost);
  }
  PrintRow("total", absl::StrCat(shape.layers), "", plan.total);
}

absl::StatusOr<int> Run(PlanFlags& flags) {
  const absl::StatusOr<std::string> text = ReadInputFile(flags.model, "--model");
  if (!text.ok()) return text.status();
  const absl::StatusOr<ModelShape> shape = ParseModelShape(*text, absl::StrCat("--model: ", flags.model));
  if (!shape.ok()) return shape.status();
  const absl::StatusOr<KvFormat> format = flags.format.empty() ? shape->dtype : ParseFormatName(flags.format);
  if (!format.ok()) return format.status();
  flags.options.format = *format;
  if (flags.memory) {
    if (*flags.memory > static_cast<uint64_t>(INT64_MAX)) {
      return absl::InvalidArgumentError("--memory: exceeds 2^63 bytes");
    }
    flags.options.memory = static_cast<int64_t>(*flags.memory);
  }
  const absl::StatusOr<Plan> plan = MakePlan(*shape, flags.options);
  if (!plan.ok()) return plan.status();
  flags.json ? PrintJson(*shape, flags.options, *plan) : Print(*shape, flags.options, *plan);
  return 0;
}

}  // namespace

void AddPlanCommand(CLI::App& app, RunCommand& run) {
  auto flags = std::make_shared<PlanFlags>();
  CLI::App* command = app.add_subcommand("plan", "Tell how much K/V memory a model's sequences take, over all shards");
  command->add_option("--model", flags->model, "config.json of a model, as Hugging Face has it")->required();
  command->add_option("--kv-format", flags->format, "fp32, fp16, bf16, fp8, int8 or int4 (default: the model's dtype)");
  command->add_option("--context", flags->options.context, "Tokens of a sequence, prompt and answer")->required();
  command->add_option("--sequences", flags->options.sequences, "Sequences at a time")->required();
  command->add_option("--tp", flags->options.shards, "Tensor-parallel shards");
  command->add_option("--block-tokens", flags->options.block_tokens, "Tokens of a block");
  command->add_option("--memory", flags->memory, "Memory for K/V, all shards together: bytes, or 80GiB and the like")
      ->transform(CLI::AsSizeValue(/*kb_is_1000=*/true));
  command->add_flag("--json", flags->json, "One JSON object on standard output");
  command->callback([flags, &run] { run = [flags] { return Run(*flags); }; });
}

}  // namespace kvmesh
