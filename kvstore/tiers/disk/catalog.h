// The catalog: which block is in which slot, in RocksDB. Key: the block key. Value: u64 LE slot, then the encoded
// header.
//
// Writes go through the write-ahead log without fsync: they survive the end of the process, and a power cut may lose
// the newest ones, in order. Nothing depends on more, since a slot's own header decides what is in it.
#ifndef KVMESH_KVSTORE_TIERS_DISK_CATALOG_H_
#define KVMESH_KVSTORE_TIERS_DISK_CATALOG_H_

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "absl/functional/function_ref.h"
#include "absl/strings/string_view.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/status.h"
#include "kvstore/base/strong_int.h"
#include "kvstore/block/block_header.h"
#include "kvstore/tiers/disk/slab_disk_options.h"

namespace rocksdb {
class DB;
}

namespace kvmesh {

// Thread safe. Statuses of every method that returns one: RESOURCE_EXHAUSTED: the file system is full. DATA_LOSS: the
// catalog is corrupt. UNAVAILABLE: any other error. After a failed write, all writes fail until Heal succeeds.
class Catalog {
 public:
  // Opens or creates.
  static absl::StatusOr<std::unique_ptr<Catalog>> Open(const std::string& path);
  // Deletes a closed catalog, whatever its state.
  static absl::Status Destroy(const std::string& path);

  ~Catalog();
  Catalog(const Catalog&) = delete;
  Catalog& operator=(const Catalog&) = delete;

  // Names `slot` as the place of the header's block, in place of any other.
  absl::Status Put(const EncodedHeader& header, const BlockKey& key, DiskSlot slot);
  // Removes the entry of `key` if it names `slot`; OK too when it does not.
  absl::Status Remove(const BlockKey& key, DiskSlot slot);
  // Removes raw keys, as ForEach gave them.
  absl::Status RemoveKeys(std::span<const std::string> keys);

  // Calls visit(key, value) for every entry, in key order, unchecked.
  absl::Status ForEach(absl::FunctionRef<void(absl::string_view, absl::string_view)> visit) const;

  // False after a failed write, of the caller's or in the background.
  bool healthy() const { return !failed_->load(std::memory_order_acquire); }
  // Ends an error by closing and opening again; what was written before the error is kept.
  // A catalog that turns out to be corrupt starts empty: the slots of this process live on, and the next one finds
  // none.
  absl::Status Heal();

 private:
  Catalog(std::string path, std::shared_ptr<std::atomic<bool>> failed, std::unique_ptr<rocksdb::DB> db);

  absl::Status Writable() const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const std::string path_;
  // Shared with RocksDB's listener, which may outlive a reopened database's owner.
  const std::shared_ptr<std::atomic<bool>> failed_;
  // One write at a time: RocksDB would serialize them too, and Remove checks and deletes at once.
  mutable Mutex mu_;
  std::unique_ptr<rocksdb::DB> db_ ABSL_GUARDED_BY(mu_);  // null after a failed reopen
};

inline constexpr size_t kCatalogValueBytes = 8 + kBlockHeaderBytes;

// The slot that a value names. REQUIRES: value.size() == kCatalogValueBytes.
DiskSlot CatalogValueSlot(absl::string_view value);
// The header bytes of a value. REQUIRES: value.size() == kCatalogValueBytes.
EncodedHeader CatalogValueHeader(absl::string_view value);

}  // namespace kvmesh

#endif  // KVMESH_KVSTORE_TIERS_DISK_CATALOG_H_
