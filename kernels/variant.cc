#include "kernels/variant.h"

#include <cstdlib>
#include <string>

#include "kernels/check.h"

namespace kvmesh {
namespace {

#ifdef KVMESH_HAVE_HIGHWAY
constexpr KernelVariant kBuilt[] = {KernelVariant::kHighway, KernelVariant::kReference};
#else
constexpr KernelVariant kBuilt[] = {KernelVariant::kReference};
#endif

KernelVariant Choose() {
  const char* wanted = std::getenv("KVMESH_KERNEL");
  if (wanted == nullptr || *wanted == '\0') return kBuilt[0];
  std::string names;
  for (KernelVariant variant : kBuilt) {
    if (KernelVariantName(variant) == wanted) return variant;
    names += ' ';
    names += KernelVariantName(variant);
  }
  Require(false, ("KVMESH_KERNEL=" + std::string(wanted) + " is not one of:" + names).c_str());
  return kBuilt[0];
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
  }
  return "unknown";
}

std::span<const KernelVariant> BuiltVariants() { return kBuilt; }

}  // namespace kvmesh
