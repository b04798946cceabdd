#include "kernels/variant.h"

#include <cstdlib>
#include <string>

#include "kernels/check.h"
#include "kernels/cpu/avx512/attention.h"

namespace kvmesh {
namespace {

#ifdef KVMESH_HAVE_HIGHWAY
constexpr KernelVariant kBuilt[] = {KernelVariant::kAvx512, KernelVariant::kHighway, KernelVariant::kReference};
#else
constexpr KernelVariant kBuilt[] = {KernelVariant::kReference};
#endif

KernelVariant Choose() {
  const char* wanted = std::getenv("KVMESH_KERNEL");
  if (wanted == nullptr || *wanted == '\0') return UsableVariants()[0];
  std::string names;
  for (KernelVariant variant : UsableVariants()) {
    if (KernelVariantName(variant) == wanted) return variant;
    names += ' ';
    names += KernelVariantName(variant);
  }
  Require(false, ("KVMESH_KERNEL=" + std::string(wanted) + " is not one of:" + names).c_str());
  return KernelVariant::kReference;
}

}  // namespace

KernelVariant CurrentVariant() {
  static const KernelVariant chosen = Choose();
  return chosen;
}

std::string_view KernelVariantName(KernelVariant variant) {
  switch (variant) {
    case KernelVariant::kReference:
      return "reference";
    case KernelVariant::kHighway:
      return "highway";
    case KernelVariant::kAvx512:
      return "avx512";
  }
  return "unknown";
}

std::span<const KernelVariant> UsableVariants() {
  static const bool all = kBuilt[0] != KernelVariant::kAvx512 || avx512::Supported();
  return std::span(kBuilt).subspan(all ? 0 : 1);
}

}  // namespace kvmesh
