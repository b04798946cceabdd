#include "kernels/cuda/attention.h"
#include "kernels/cuda/attention_launch.h"
#include "kernels/cuda/block_bytes_body.h"
#include "kernels/cuda/plain_attention_body.h"

namespace kvmesh::cuda {
namespace {

constexpr int32_t kMaxHeadDim = 256;
constexpr int32_t kMaxMlaRow = 640;

template <bool kSplit, int kLaneElements>
__global__ void __launch_bounds__(kPlainThreads) PlainKernel(AttentionArgs args) {
  Device m;
  PlainAttentionBody<kSplit, kLaneElements>(m, args);
}

__global__ void __launch_bounds__(128) MergeSpansKernel(AttentionArgs args) {
  Device m;
  MergeSpansBody(m, args);
}

template <int kLaneElements>
cudaError_t LaunchPlain(const AttentionLaunch& launch) {
  const size_t shared = PlainSharedBytes(launch.args.pool.layout);
  const cudaError_t status = LaunchTiles(PlainKernel<true, kLaneElements>, launch, launch.args.max_queries, kPlainRows,
                                         launch.args.spans, kPlainThreads, shared);
  if (status != cudaSuccess || launch.most_queries <= kSplitQueries) return status;
  return LaunchTiles(PlainKernel<false, kLaneElements>, launch, launch.most_queries, kPlainRows, 1, kPlainThreads,
                     shared);
}

int64_t PartialRows(int64_t sequences, const AttentionBounds& bounds, int32_t q_heads, int64_t window) {
  const int64_t queries = std::min(bounds.max_queries, kSplitQueries);
  return sequences * queries * q_heads * MostSpans(bounds.max_length, queries, window);
}

// Rows start at multiples of 16 bytes.
bool Aligned(const KvPoolView& pool) {
  const BlockLayout& layout = pool.layout;
  return UnitOf(reinterpret_cast<uintptr_t>(pool.base), pool.slot_stride, layout.layer_stride, layout.kv_stride,
                layout.head_stride, layout.token_stride) == 16;
}

// Checks what is common, fills in the rest and launches.
cudaError_t Attend(AttentionArgs args, int64_t query_size, int64_t out_size, DeviceView<float> lse, int64_t sequences,
                   const AttentionBounds& bounds, DeviceView<std::byte> workspace, cudaStream_t stream) {
  const BlockLayout& layout = args.pool.layout;
  const int64_t row = int64_t{args.q_heads} * layout.head_dim, rows = query_size / row * args.q_heads;
  if (args.layer < 0 || args.layer >= layout.layers || query_size % row != 0 || out_size != rows * args.value_dim ||
      (!lse.empty() && lse.size != rows) || bounds.max_queries < 0 || bounds.max_length < 0 ||
      bounds.max_queries > 0x7fffffff || bounds.max_length > 0x7fffffff || sequences > 0x7fffffff ||
      reinterpret_cast<uintptr_t>(workspace.data) % 16 != 0 ||
      workspace.size < AttentionWorkspace(sequences, bounds, args.q_heads, args.value_dim, args.window)) {
    return cudaErrorInvalidValue;
  }
  if (rows == 0 || sequences == 0 || bounds.max_queries == 0) return cudaSuccess;
  args.lse = lse.empty() ? nullptr : lse.data;
  args.batch = static_cast<int32_t>(sequences);
  args.max_queries = static_cast<int32_t>(std::min(bounds.max_queries, kSplitQueries));
  args.spans = static_cast<int32_t>(MostSpans(bounds.max_length, args.max_queries, args.window));
  args.aligned = Aligned(args.pool);
  args.partial_out = reinterpret_cast<float*>(workspace.data);
  args.partial_lse = args.partial_out + PartialRows(sequences, bounds, args.q_heads, args.window) * args.value_dim;

  const AttentionLaunch launch = {args, bounds.max_queries, stream};
  bool launched = false;
  cudaError_t status = cudaSuccess;
  if (!layout.mla() && KvFormatBits(layout.format) == 16) status = LaunchTwoByteAttention(launch, &launched);
  if (!layout.mla() && KvFormatBits(layout.format) == 8) status = LaunchOneByteAttention(launch, &launched);
  if (!launched) status = layout.mla() ? LaunchPlain<kMaxMlaRow / 32>(launch) : LaunchPlain<kMaxHeadDim / 32>(launch);
  if (status != cudaSuccess) return status;
  const int64_t blocks = int64_t{args.batch} * args.max_queries * args.q_heads;
  if (blocks > 0x7fffffff) return cudaErrorInvalidValue;
  MergeSpansKernel<<<static_cast<unsigned>(blocks), 128, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

int64_t AttentionWorkspace(int64_t sequences, const AttentionBounds& bounds, int32_t q_heads, int32_t value_dim,
                           int64_t window) {
  return PartialRows(sequences, bounds, q_heads, window) * (value_dim + 1) * static_cast<int64_t>(sizeof(float));
}

cudaError_t PagedAttention(DeviceView<const float> query, DeviceView<const DeviceSequence> sequences,
                           const AttentionBounds& bounds, int32_t layer, const AttentionParams& params,
                           const KvPoolView& pool, DeviceView<std::byte> workspace, DeviceView<float> out,
                           DeviceView<float> lse, cudaStream_t stream) {
  const BlockLayout& layout = pool.layout;
  if (KvFormatBits(layout.format) == 0 || layout.mla() || layout.head_dim <= 0 || layout.head_dim > kMaxHeadDim ||
      layout.head_dim % 8 != 0 || params.q_heads <= 0 || params.q_heads % layout.kv_heads != 0 || params.window < 0 ||
      (!params.sinks.empty() && params.sinks.size() != static_cast<size_t>(params.q_heads))) {
    return cudaErrorInvalidValue;
  }
  AttentionArgs args;
  args.query = query.data;
  args.sinks = params.sinks.empty() ? nullptr : params.sinks.data();
  args.out = out.data;
  args.sequences = sequences.data;
  args.pool = pool;
  args.window = params.window;
  args.scale = params.scale;
  args.soft_cap = params.soft_cap;
  args.layer = layer;
  args.q_heads = params.q_heads;
  args.value_dim = layout.head_dim;
  return Attend(args, query.size, out.size, lse, sequences.size, bounds, workspace, stream);
}

cudaError_t MlaPagedDecode(DeviceView<const float> query, DeviceView<const DeviceSequence> sequences,
                           const AttentionBounds& bounds, int32_t layer, const MlaParams& params,
                           const KvPoolView& pool, DeviceView<std::byte> workspace, DeviceView<float> out,
                           DeviceView<float> lse, cudaStream_t stream) {
  const BlockLayout& layout = pool.layout;
  if (KvFormatBits(layout.format) == 0 || !layout.mla() || layout.head_dim < layout.latent_dim ||
      layout.head_dim > kMaxMlaRow || layout.head_dim % 8 != 0 || params.q_heads <= 0) {
    return cudaErrorInvalidValue;
  }
  AttentionArgs args;
  args.query = query.data;
  args.out = out.data;
  args.sequences = sequences.data;
  args.pool = pool;
  args.scale = params.scale;
  args.layer = layer;
  args.q_heads = params.q_heads;
  args.value_dim = layout.latent_dim;
  return Attend(args, query.size, out.size, lse, sequences.size, bounds, workspace, stream);
}

}  // namespace kvmesh::cuda
