// Speed of forward passes of the shipped model, in tokens per second.
//   Prefill/<tokens>/<tokens a pass>/<threads>   a fresh sequence, logits of its last token
//   Decode/<context>/<sequences>/<threads>       one token for each of several sequences, after `context` tokens
// KVMESH_SOURCE_DIR names the tree.
#include <memory>
#include <random>

#include "benchmark/benchmark.h"
#include "tests/unit/worker/model/local_runner.h"

namespace kvmesh::testing {
namespace {

std::unique_ptr<LlamaModel> LoadShipped(benchmark::State& state, int64_t threads) {
  absl::StatusOr<std::unique_ptr<LlamaModel>> model =
      LlamaModel::Load(ShippedDir(), {.threads = static_cast<int32_t>(threads)});
  if (model.ok()) return *std::move(model);
  state.SkipWithError(model.status().ToString().c_str());
  return nullptr;
}

std::vector<uint32_t> RandomTokens(int64_t count) {
  std::mt19937 random(1);
  std::vector<uint32_t> out(static_cast<size_t>(count));
  for (uint32_t& token : out) token = random() % 256;
  return out;
}

void Prefill(benchmark::State& state) {
  const int64_t length = state.range(0), step = state.range(1);
  const std::unique_ptr<LlamaModel> model = LoadShipped(state, state.range(2));
  if (model == nullptr) return;
  const std::vector<uint32_t> tokens = RandomTokens(length);
  const PlainPool pool(model->config().CacheLayout(KvFormat::kF32, 16), (length + 15) / 16);
  for (auto _ : state) {
    LocalSequence sequence(pool.view(), 0, length);
    for (int64_t begin = 0; begin < length; begin += step) {
      const int64_t count = std::min(step, length - begin);
      const auto part = std::span(tokens).subspan(static_cast<size_t>(begin), static_cast<size_t>(count));
      const bool last = begin + count == length;
      MustForward(*model, pool.view(), sequence.Next(part, last ? LogitsWanted::kLast : LogitsWanted::kNone));
    }
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(length * state.iterations()), benchmark::Counter::kIsRate);
  state.SetLabel(model->row_kernels().name);
}

void Decode(benchmark::State& state) {
  const int64_t context = state.range(0), count = state.range(1);
  const std::unique_ptr<LlamaModel> model = LoadShipped(state, state.range(2));
  if (model == nullptr) return;
  const std::vector<uint32_t> tokens = RandomTokens(context + 1);
  const int64_t blocks = context / 16 + 1;
  const PlainPool pool(model->config().CacheLayout(KvFormat::kF32, 16), blocks * count);
  std::vector<LocalSequence> sequences;
  for (int64_t s = 0; s < count; ++s) {
    sequences.emplace_back(pool.view(), static_cast<uint32_t>(s * blocks), context + 1);
    const auto prompt = std::span(tokens).first(static_cast<size_t>(context));
    MustForward(*model, pool.view(), sequences.back().Next(prompt, LogitsWanted::kNone));
  }
  for (auto _ : state) {
    std::vector<ForwardSequence> batch;
    for (LocalSequence& sequence : sequences) {
      sequence.ResumeAt(context);
      batch.push_back(sequence.Next(std::span(tokens).last(1)));
    }
    benchmark::DoNotOptimize(MustForward(*model, pool.view(), batch));
  }
  state.counters["tokens/s"] =
      benchmark::Counter(static_cast<double>(count * state.iterations()), benchmark::Counter::kIsRate);
  state.SetLabel(model->row_kernels().name);
}

BENCHMARK(Prefill)
    ->Args({256, 256, 1})
    ->Args({1024, 1024, 1})
    ->Args({1024, 64, 1})
    ->Args({4096, 512, 1})
    ->Args({4096, 512, 2})
    ->Args({8192, 512, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMillisecond);
BENCHMARK(Decode)
    ->Args({64, 1, 1})
    ->Args({1024, 1, 1})
    ->Args({1024, 8, 1})
    ->Args({1024, 8, 2})
    ->Args({4096, 1, 1})
    ->UseRealTime()
    ->Unit(benchmark::kMicrosecond);

}  // namespace
}  // namespace kvmesh::testing

BENCHMARK_MAIN();
