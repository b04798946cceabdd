#include "worker/model/llama_model.h"

#include <openssl/evp.h>

#include <algorithm>
#include <array>
#include <utility>

#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "kvstore/base/bytes.h"
#include "worker/model/forward_pass.h"
#include "worker/model/safetensors.h"
#include "worker/model/strict_json.h"

namespace kvmesh {
namespace {

constexpr size_t kMaxConfigBytes = 1 << 20;
// Rotations up to here are kept in a table; later ones are computed when met.
constexpr int64_t kMaxRopeTablePositions = 16384;

// Hex SHA-256 of the length of `config`, `config`, `weights`; empty when the library fails.
std::string Digest(const std::string& config, std::span<const std::byte> weights) {
  std::string length;
  AppendLittleEndian(uint64_t{config.size()}, length);
  const std::unique_ptr<EVP_MD_CTX, decltype(&EVP_MD_CTX_free)> context(EVP_MD_CTX_new(), &EVP_MD_CTX_free);
  std::array<unsigned char, EVP_MAX_MD_SIZE> digest;
  unsigned int size = 0;
  const bool ok = context != nullptr && EVP_DigestInit_ex(context.get(), EVP_sha256(), nullptr) == 1 &&
                  EVP_DigestUpdate(context.get(), length.data(), length.size()) == 1 &&
                  EVP_DigestUpdate(context.get(), config.data(), config.size()) == 1 &&
                  EVP_DigestUpdate(context.get(), weights.data(), weights.size()) == 1 &&
                  EVP_DigestFinal_ex(context.get(), digest.data(), &size) == 1;
  if (!ok) return "";
  return absl::BytesToHexString(absl::string_view(reinterpret_cast<const char*>(digest.data()), size));
}

}  // namespace

LlamaModel::LlamaModel(LlamaConfig config, LlamaWeights weights, std::string revision, const RowKernels& kernels,
                       int32_t threads)
    : config_(std::move(config)),
      weights_(std::move(weights)),
      revision_(std::move(revision)),
      kernels_(&kernels),
      rope_({.theta = config_.rope_theta, .rotary_dim = config_.head_dim, .interleaved = false},
            std::min(config_.max_positions, kMaxRopeTablePositions)),
      runner_(std::make_unique<ParallelRunner>(threads)) {}

absl::StatusOr<std::unique_ptr<LlamaModel>> LlamaModel::Load(const std::string& dir, const ModelOptions& options) {
  if (options.threads < 1 || options.threads > kMaxModelThreads) {
    return absl::InvalidArgumentError(absl::StrCat("threads: not between 1 and ", kMaxModelThreads));
  }
  const RowKernels& kernels = options.kernels != nullptr ? *options.kernels : BestRowKernels();

  const absl::StatusOr<std::string> text = ReadSmallFile(absl::StrCat(dir, "/config.json"), kMaxConfigBytes);
  if (!text.ok()) return text.status();
  absl::StatusOr<LlamaConfig> config = ParseLlamaConfig(*text);
  if (!config.ok()) {
    return absl::Status(config.status().code(), absl::StrCat(dir, ": ", config.status().message()));
  }
  const absl::StatusOr<std::unique_ptr<SafetensorsFile>> file =
      SafetensorsFile::Open(absl::StrCat(dir, "/model.safetensors"));
  if (!file.ok()) return file.status();
  absl::StatusOr<LlamaWeights> weights = LoadLlamaWeights(**file, *config, kernels);
  if (!weights.ok()) return weights.status();
  std::string revision = Digest(*text, (*file)->contents());
  if (revision.empty()) return absl::UnavailableError("SHA-256 is not available");
  return std::unique_ptr<LlamaModel>(
      new LlamaModel(*std::move(config), *std::move(weights), std::move(revision), kernels, options.threads));
}

absl::StatusOr<Logits> LlamaModel::Forward(std::span<const ForwardSequence> batch,
                                           std::span<const KvPoolView> pools) const {
  KVMESH_RETURN_IF_ERROR(CheckForwardBatch(batch, config_, pools));
  const ForwardModel model = {config_, weights_, *kernels_, rope_};
  return ForwardPass(model, batch, pools, *runner_).Run();
}

}  // namespace kvmesh
