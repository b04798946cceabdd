#include "kernels/cuda/append.h"
#include "kernels/cuda/launch.h"
#include "kernels/cuda/rows_body.h"

namespace kvmesh::cuda {
namespace {

__global__ void __launch_bounds__(kThreads) AppendKernel(AppendArgs args) {
  Device m;
  AppendBody(m, args);
}

__global__ void __launch_bounds__(kThreads) ConvertKernel(ConvertArgs args) {
  Device m;
  ConvertBody(m, args);
}

cudaError_t Append(const AppendArgs& args, cudaStream_t stream) {
  const BlockLayout& layout = args.pool.layout;
  if (args.layer < 0 || args.layer >= layout.layers) return cudaErrorInvalidValue;
  if (args.tokens == 0) return cudaSuccess;
  const int64_t rows = args.tokens * layout.kv_heads * (layout.mla() ? 1 : 2);
  AppendKernel<<<BlocksFor(rows * kWarpThreads), kThreads, 0, stream>>>(args);
  return cudaGetLastError();
}

}  // namespace

cudaError_t ReshapeAndCache(DeviceView<const float> key, DeviceView<const float> value,
                            DeviceView<const int64_t> slot_mapping, int32_t layer, const KvPoolView& pool,
                            cudaStream_t stream) {
  const BlockLayout& layout = pool.layout;
  const int64_t elements = slot_mapping.size * layout.kv_heads * layout.head_dim;
  if (KvFormatBits(layout.format) == 0 || layout.mla() || key.size != elements || value.size != elements) {
    return cudaErrorInvalidValue;
  }
  return Append({key.data, value.data, slot_mapping.data, slot_mapping.size, layer, pool}, stream);
}

cudaError_t ConcatAndCacheMla(DeviceView<const float> latent, DeviceView<const float> rope_key,
                              DeviceView<const int64_t> slot_mapping, int32_t layer, const KvPoolView& pool,
                              cudaStream_t stream) {
  const BlockLayout& layout = pool.layout;
  if (KvFormatBits(layout.format) == 0 || !layout.mla() || latent.size != slot_mapping.size * layout.latent_dim ||
      rope_key.size != slot_mapping.size * (layout.head_dim - layout.latent_dim)) {
    return cudaErrorInvalidValue;
  }
  return Append({latent.data, rope_key.data, slot_mapping.data, slot_mapping.size, layer, pool}, stream);
}

cudaError_t ConvertBlocks(const KvPoolView& from, DeviceView<const uint32_t> from_ids, const KvPoolView& to,
                          DeviceView<const uint32_t> to_ids, int64_t count, cudaStream_t stream) {
  const BlockLayout &a = from.layout, &b = to.layout;
  if (KvFormatBits(a.format) == 0 || KvFormatBits(b.format) == 0 || a.format == b.format || a.layers != b.layers ||
      a.kv_heads != b.kv_heads || a.block_tokens != b.block_tokens || a.head_dim != b.head_dim ||
      a.latent_dim != b.latent_dim || count < 0 || (!from_ids.empty() && from_ids.size != count) ||
      (!to_ids.empty() && to_ids.size != count)) {
    return cudaErrorInvalidValue;
  }
  if (count == 0) return cudaSuccess;
  const int64_t rows = count * a.layers * a.kv_heads * a.block_tokens * (a.mla() ? 1 : 2);
  ConvertKernel<<<BlocksFor(rows * kWarpThreads), kThreads, 0, stream>>>(
      {from, to, from_ids.empty() ? nullptr : from_ids.data, to_ids.empty() ? nullptr : to_ids.data, count});
  return cudaGetLastError();
}

}  // namespace kvmesh::cuda
