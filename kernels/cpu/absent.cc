// Stands in for the Highway variant in builds without Highway, where no one can choose it.
#include "kernels/check.h"
#include "kernels/cpu/avx512/attention.h"
#include "kernels/cpu/kernels.h"

namespace kvmesh::cpu {

void QuantizeRows(const float*, const BlockLayout&, const StoredRows<std::byte>&) {
  Require(false, "built without Highway");
}

void DequantizeRows(const StoredRows<const std::byte>&, const BlockLayout&, float*) {
  Require(false, "built without Highway");
}

void AttendRows(const AttentionCall&, const AttentionRows&, KeyRange, RowStates) {
  Require(false, "built without Highway");
}

void MlaPagedDecode(std::span<const float>, std::span<const AttentionSequence>, int32_t, const MlaParams&,
                    const KvPoolView&, std::span<float>, std::span<float>) {
  Require(false, "built without Highway");
}

}  // namespace kvmesh::cpu

namespace kvmesh::avx512 {

bool Supported() { return false; }

void AttendRows(const AttentionCall&, const AttentionRows&, KeyRange, RowStates) {
  Require(false, "built without Highway");
}

}  // namespace kvmesh::avx512
