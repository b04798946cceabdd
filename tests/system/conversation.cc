#include "tests/system/conversation.h"

#include <random>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "kvstore/service/grpc_status.h"

namespace kvmesh {
namespace {

constexpr size_t kSharedTokens = 320;
constexpr size_t kTurnTokens = 80;
constexpr absl::Duration kLoadTimeout = absl::Seconds(8);
// What a loaded machine may add to a deadline before it counts as missed.
constexpr absl::Duration kLateness = absl::Seconds(3);
constexpr const char* kWords[] = {"the ",   "king ",  "of ",   "house ", "and ",  "stone ", "river ", "shepherd ",
                                  "said ",  "unto ",  "went ", "forth ", "city ", "gate ",  "day ",   "brother ",
                                  "bread ", "water ", "ark ",  "cedar ", "six ",  "seven ", "hand ",  "voice "};

std::string Text(std::mt19937_64& random, size_t bytes) {
  std::string text;
  while (text.size() < bytes) text += kWords[random() % std::size(kWords)];
  return text.substr(0, bytes);
}

// What a client may see while processes die and come back.
bool Explained(const absl::Status& status) {
  return absl::IsUnavailable(status) || absl::IsNotFound(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsResourceExhausted(status);
}

}  // namespace

std::vector<Prompt> MakePrompts(uint64_t seed, size_t conversations, size_t turns) {
  std::mt19937_64 random(seed);
  const std::string shared = Text(random, kSharedTokens);
  std::vector<Prompt> prompts;
  for (size_t c = 0; c < conversations; ++c) {
    std::string text = shared;
    for (size_t t = 0; t < turns; ++t) {
      text += Text(random, kTurnTokens);
      Prompt& prompt = prompts.emplace_back();
      for (const char byte : text) prompt.tokens.push_back(static_cast<unsigned char>(byte));
      // Ends inside a block, but for one prompt in three.
      if (prompts.size() % 3 != 0) prompt.tokens.resize(prompt.tokens.size() - prompts.size() % 7);
    }
  }
  return prompts;
}

testing::AssertionResult ComputeAnswers(ProcessCluster& cluster, std::vector<Prompt>& prompts) {
  for (Prompt& prompt : prompts) {
    ClusterGenerateRequest request;
    request.tokens = prompt.tokens;
    request.max_tokens = kAnswerTokens;
    request.no_cache = true;
    request.worker_id = cluster.worker_id(0);
    absl::StatusOr<ClusterGenerateResult> result = GenerateOnCluster(cluster.client(), request);
    if (!result.ok()) return testing::AssertionFailure() << result.status();
    if (result->tokens.size() != kAnswerTokens) return testing::AssertionFailure() << "the answer ended early";
    prompt.answer = std::move(result->tokens);
  }
  return testing::AssertionSuccess();
}

absl::StatusOr<ClusterGenerateResult> Ask(ProcessCluster& cluster, const Prompt& prompt, const AskOptions& options) {
  ClusterGenerateRequest request;
  request.tokens = prompt.tokens;
  request.max_tokens = kAnswerTokens;
  request.cache_salt = options.salt;
  request.worker_id = options.worker_id;
  request.timeout = options.timeout;
  size_t tokens = 0;
  bool wrong = false;
  request.on_token = [&](uint32_t id, const std::string&) {
    wrong = wrong || tokens >= prompt.answer.size() || prompt.answer[tokens] != id;
    ++tokens;
  };
  absl::StatusOr<ClusterGenerateResult> result = GenerateOnCluster(cluster.client(), request);
  if (wrong) return absl::InternalError(absl::StrCat("a token of the first ", tokens, " is wrong"));
  if (result.ok() && result->tokens != prompt.answer) return absl::InternalError("the answer is wrong");
  return result;
}

absl::StatusOr<std::vector<uint32_t>> AskDirectly(ProcessCluster& cluster, size_t i, const Prompt& prompt,
                                                  const std::string& salt) {
  v1::GenerateRequest request;
  request.mutable_tokens()->Add(prompt.tokens.begin(), prompt.tokens.end());
  request.set_max_tokens(kAnswerTokens);
  request.set_cache_salt(salt);
  grpc::ClientContext context;
  context.set_deadline(absl::ToChronoTime(absl::Now() + absl::Seconds(20)));
  const auto stub = cluster.Stub(i);
  const auto reader = stub->Generate(&context, request);
  v1::GenerateResponse response;
  std::vector<uint32_t> tokens;
  while (reader->Read(&response)) {
    if (response.has_token()) tokens.push_back(response.token().id());
  }
  const grpc::Status status = reader->Finish();
  if (!status.ok()) return FromGrpcStatus(status);
  return tokens;
}

Load::Load(ProcessCluster& cluster, const std::vector<Prompt>& prompts, std::string salt, size_t threads, uint64_t seed)
    : cluster_(cluster), prompts_(prompts), salt_(std::move(salt)) {
  for (size_t i = 0; i < threads; ++i) threads_.emplace_back([this, seed, i] { Run(seed * 1000 + i); });
}

std::string Load::Stop() {
  stopping_ = true;
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  MutexLock lock(mu_);
  return failures_;
}

void Load::Run(uint64_t seed) {
  std::mt19937_64 random(seed);
  while (!stopping_) {
    const Prompt& prompt = prompts_[random() % prompts_.size()];
    AskOptions options{.salt = salt_, .timeout = kLoadTimeout};
    if (random() % 4 != 0) options.worker_id = cluster_.worker_id(random() % cluster_.size());
    const absl::Time began = absl::Now();
    const absl::StatusOr<ClusterGenerateResult> result = Ask(cluster_, prompt, options);
    const absl::Duration took = absl::Now() - began;
    if (result.ok()) ++answered_;
    if ((result.ok() || Explained(result.status())) && took <= kLoadTimeout + kLateness) {
      // A dead worker answers at once; not asked without pause.
      if (!result.ok()) absl::SleepFor(absl::Milliseconds(20));
      continue;
    }
    MutexLock lock(mu_);
    absl::StrAppend(&failures_, options.worker_id, " after ", absl::FormatDuration(took), ": ",
                    result.status().ToString(), "\n");
  }
}

}  // namespace kvmesh
