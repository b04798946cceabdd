#include "kvstore/tiers/disk/catalog.h"

#include <rocksdb/cache.h>
#include <rocksdb/db.h>
#include <rocksdb/env.h>
#include <rocksdb/listener.h>
#include <rocksdb/options.h>
#include <rocksdb/table.h>
#include <rocksdb/write_batch.h>

#include <cstdarg>
#include <cstring>
#include <filesystem>
#include <system_error>

#include "absl/strings/str_cat.h"

namespace kvmesh {
namespace {

constexpr size_t kWriteBufferBytes = size_t{8} << 20;
constexpr size_t kBlockCacheBytes = size_t{4} << 20;

absl::Status ToStatus(const rocksdb::Status& status, absl::string_view what) {
  if (status.ok()) return absl::OkStatus();
  const std::string message = absl::StrCat("catalog: ", what, ": ", status.ToString());
  if (status.IsNoSpace()) return absl::ResourceExhaustedError(message);
  // A missing file is as fatal for a catalog as a corrupt one.
  if (status.IsCorruption() || status.IsInvalidArgument() || status.IsNotSupported() || status.IsPathNotFound()) {
    return absl::DataLossError(message);
  }
  return absl::UnavailableError(message);
}

rocksdb::Slice KeySlice(const BlockKey& key) { return {key.view().data(), key.view().size()}; }

// Notes failures of background work, and keeps RocksDB from resuming by itself: the tier decides when.
class FailureListener : public rocksdb::EventListener {
 public:
  explicit FailureListener(std::shared_ptr<std::atomic<bool>> failed) : failed_(std::move(failed)) {}
  void OnBackgroundError(rocksdb::BackgroundErrorReason, rocksdb::Status*) override {
    failed_->store(true, std::memory_order_release);
  }
  void OnErrorRecoveryBegin(rocksdb::BackgroundErrorReason, rocksdb::Status, bool* auto_recovery) override {
    *auto_recovery = false;
  }

 private:
  const std::shared_ptr<std::atomic<bool>> failed_;
};

// RocksDB's own log is left out: a full file system would fail its writer, and builds with assertions abort at the
// next line. Errors reach the caller as statuses.
class NoLog : public rocksdb::Logger {
 public:
  NoLog() : rocksdb::Logger(rocksdb::FATAL_LEVEL) {}
  using rocksdb::Logger::Logv;
  void Logv(const char*, va_list) override {}
};

rocksdb::Options MakeOptions(const std::shared_ptr<std::atomic<bool>>& failed) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.write_buffer_size = kWriteBufferBytes;
  options.max_write_buffer_number = 2;
  options.target_file_size_base = size_t{32} << 20;
  options.compression = rocksdb::kNoCompression;
  options.max_open_files = 64;
  options.max_background_jobs = 2;
  options.max_manifest_file_size = size_t{4} << 20;
  options.info_log = std::make_shared<NoLog>();
  options.stats_dump_period_sec = 0;
  options.stats_persist_period_sec = 0;
  // Preallocation would take the space that a nearly full file system lacks.
  options.allow_fallocate = false;
  options.avoid_flush_during_shutdown = true;
  options.max_bgerror_resume_count = 0;
  options.listeners.push_back(std::make_shared<FailureListener>(failed));
  rocksdb::BlockBasedTableOptions table;
  table.block_cache = rocksdb::NewLRUCache(kBlockCacheBytes);
  options.table_factory.reset(rocksdb::NewBlockBasedTableFactory(table));
  return options;
}

absl::Status OpenDb(const std::string& path, const std::shared_ptr<std::atomic<bool>>& failed,
                    std::unique_ptr<rocksdb::DB>& out) {
  rocksdb::DB* db = nullptr;
  const rocksdb::Status status = rocksdb::DB::Open(MakeOptions(failed), path, &db);
  if (!status.ok()) return ToStatus(status, "open");
  out.reset(db);
  return absl::OkStatus();
}

}  // namespace

DiskSlot CatalogValueSlot(absl::string_view value) {
  uint64_t slot = 0;
  for (size_t i = 0; i < 8; ++i) slot |= uint64_t{static_cast<uint8_t>(value[i])} << (8 * i);
  return DiskSlot(slot);
}

EncodedHeader CatalogValueHeader(absl::string_view value) {
  EncodedHeader out;
  std::memcpy(out.data(), value.data() + 8, out.size());
  return out;
}

Catalog::Catalog(std::string path, std::shared_ptr<std::atomic<bool>> failed, std::unique_ptr<rocksdb::DB> db)
    : path_(std::move(path)), failed_(std::move(failed)), db_(std::move(db)) {}

Catalog::~Catalog() = default;

absl::StatusOr<std::unique_ptr<Catalog>> Catalog::Open(const std::string& path) {
  auto failed = std::make_shared<std::atomic<bool>>(false);
  std::unique_ptr<rocksdb::DB> db;
  KVMESH_RETURN_IF_ERROR(OpenDb(path, failed, db));
  return std::unique_ptr<Catalog>(new Catalog(path, std::move(failed), std::move(db)));
}

absl::Status Catalog::Destroy(const std::string& path) {
  std::error_code ec;
  std::filesystem::remove_all(path, ec);
  if (ec) return absl::UnavailableError(absl::StrCat("catalog: remove ", path, ": ", ec.message()));
  return absl::OkStatus();
}

absl::Status Catalog::Writable() const {
  if (db_ == nullptr || !healthy()) return absl::UnavailableError("catalog: stopped by an error");
  return absl::OkStatus();
}

absl::Status Catalog::Put(const EncodedHeader& header, const BlockKey& key, DiskSlot slot) {
  std::string value;
  value.reserve(kCatalogValueBytes);
  AppendLittleEndian(slot.value(), value);
  value.append(reinterpret_cast<const char*>(header.data()), header.size());

  MutexLock lock(mu_);
  KVMESH_RETURN_IF_ERROR(Writable());
  const absl::Status status = ToStatus(db_->Put(rocksdb::WriteOptions(), KeySlice(key), value), "put");
  if (!status.ok()) failed_->store(true, std::memory_order_release);
  return status;
}

absl::Status Catalog::Remove(const BlockKey& key, DiskSlot slot) {
  MutexLock lock(mu_);
  KVMESH_RETURN_IF_ERROR(Writable());
  std::string value;
  const rocksdb::Status found = db_->Get(rocksdb::ReadOptions(), KeySlice(key), &value);
  if (found.IsNotFound()) return absl::OkStatus();
  absl::Status status = ToStatus(found, "get");
  if (status.ok()) {
    if (value.size() == kCatalogValueBytes && CatalogValueSlot(value) != slot) return absl::OkStatus();
    status = ToStatus(db_->Delete(rocksdb::WriteOptions(), KeySlice(key)), "delete");
  }
  if (!status.ok()) failed_->store(true, std::memory_order_release);
  return status;
}

absl::Status Catalog::RemoveKeys(std::span<const std::string> keys) {
  MutexLock lock(mu_);
  KVMESH_RETURN_IF_ERROR(Writable());
  rocksdb::WriteBatch batch;
  for (const std::string& key : keys) batch.Delete(key);
  const absl::Status status = ToStatus(db_->Write(rocksdb::WriteOptions(), &batch), "delete");
  if (!status.ok()) failed_->store(true, std::memory_order_release);
  return status;
}

absl::Status Catalog::ForEach(absl::FunctionRef<void(absl::string_view, absl::string_view)> visit) const {
  MutexLock lock(mu_);
  if (db_ == nullptr) return absl::UnavailableError("catalog: closed after an error");
  rocksdb::ReadOptions read;
  read.fill_cache = false;
  const std::unique_ptr<rocksdb::Iterator> it(db_->NewIterator(read));
  for (it->SeekToFirst(); it->Valid(); it->Next()) {
    visit({it->key().data(), it->key().size()}, {it->value().data(), it->value().size()});
  }
  return ToStatus(it->status(), "scan");
}

absl::Status Catalog::Heal() {
  // Not DB::Resume: with an empty memtable (7.8) it keeps the log file that failed, and the next write to that fails
  // again, by an abort in builds with assertions.
  MutexLock lock(mu_);
  failed_->store(true, std::memory_order_release);
  db_.reset();
  absl::Status status = OpenDb(path_, failed_, db_);
  if (absl::IsDataLoss(status)) {
    status = Destroy(path_);
    if (status.ok()) status = OpenDb(path_, failed_, db_);
  }
  if (status.ok()) failed_->store(false, std::memory_order_release);
  return status;
}

}  // namespace kvmesh
