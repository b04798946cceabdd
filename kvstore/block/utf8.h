// Strict UTF-8: text in identities must have one spelling only.
#ifndef KVMESH_KVSTORE_BLOCK_UTF8_H_
#define KVMESH_KVSTORE_BLOCK_UTF8_H_

#include "absl/strings/string_view.h"

namespace kvmesh {

// True when `text` is well-formed UTF-8 (Unicode table 3-7): no surrogate, no overlong form, nothing above U+10FFFF.
// Empty text is valid.
bool IsValidUtf8(absl::string_view text);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_BLOCK_UTF8_H_
