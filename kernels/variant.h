// Which implementation of the CPU kernels a process runs.
#ifndef KVMESH_KERNELS_VARIANT_H_
#define KVMESH_KERNELS_VARIANT_H_

#include <span>
#include <string_view>

namespace kvmesh {

enum class KernelVariant {
  kReference,  // plain double precision, any machine
  kHighway,    // vectors of the best instruction set that the CPU has, where built with Highway
  kAvx512,     // Highway, and attention by AVX-512 with BF16 and VNNI, where the CPU has all of them
};

// Goes up with every change by which a variant gives other bits for the same input. Identities name it beside the
// variant, so that state of other bits is never taken for the same.
inline constexpr int kKernelRevision = 2;

// Chosen once, at first use: the variant that the environment variable KVMESH_KERNEL names, else the fastest one
// usable. A name that is unknown or not usable aborts with a message that lists the names. Thread safe.
KernelVariant CurrentVariant();

// "reference", "highway" or "avx512".
std::string_view KernelVariantName(KernelVariant variant);

// The variants of this build that the CPU runs, fastest first.
std::span<const KernelVariant> UsableVariants();

}  // namespace kvmesh

#endif  // KVMESH_KERNELS_VARIANT_H_
