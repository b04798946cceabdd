#include "worker/engine/sequence_table.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"

namespace kvmesh {

namespace {

// A change of an injected clock wakes nobody: waits look at it this often.
constexpr absl::Duration kWaitStep = absl::Milliseconds(100);

}  // namespace

SequenceTable::Borrowed::~Borrowed() {
  if (slot_ == nullptr) return;
  std::unique_ptr<Sequence> closed;  // ends after the lock is released
  {
    MutexLock lock(slot_->mu);
    slot_->in_use = false;
    if (slot_->closed) closed = std::move(slot_->sequence);
  }
  slot_->released.NotifyAll();
}

absl::Status SequenceTable::Check(uint64_t session, absl::Duration lease, absl::string_view tenant) const {
  if (lease < absl::ZeroDuration() || lease > options_.max_lease) {
    return absl::InvalidArgumentError(absl::StrCat("lease_ms: ", absl::ToInt64Milliseconds(lease), ", the limit is ",
                                                   absl::ToInt64Milliseconds(options_.max_lease)));
  }
  const auto owner = sessions_.find(session);
  if (session != 0 && (owner == sessions_.end() || owner->second != tenant)) {
    return absl::NotFoundError(absl::StrCat("session_id: no session ", session));
  }
  if (records_.size() < options_.max_sequences) return absl::OkStatus();
  return absl::ResourceExhaustedError(absl::StrCat("sequences: the limit of ", options_.max_sequences, " is reached"));
}

absl::Status SequenceTable::CheckRoom(uint64_t session, absl::Duration lease, absl::string_view tenant) const {
  MutexLock lock(mu_);
  return Check(session, lease, tenant);
}

absl::StatusOr<SequenceId> SequenceTable::Insert(std::unique_ptr<Sequence> sequence, uint64_t session,
                                                 absl::Duration lease, absl::string_view tenant) {
  auto slot = std::make_shared<Slot>();
  {
    MutexLock slot_lock(slot->mu);
    slot->sequence = std::move(sequence);
  }
  MutexLock lock(mu_);
  KVMESH_RETURN_IF_ERROR(Check(session, lease, tenant));
  if (lease == absl::ZeroDuration()) lease = options_.default_lease;
  Record record;
  record.slot = std::move(slot);
  const absl::Time now = clock_.Now();
  record.tenant = std::string(tenant);
  record.session = session;
  record.lease = lease;
  record.end_of_life = now + options_.max_life;
  record.deadline = session == 0 ? std::min(now + lease, record.end_of_life) : record.end_of_life;
  const SequenceId id(next_id_++);
  records_.emplace(id, std::move(record));
  return id;
}

absl::StatusOr<SequenceTable::Borrowed> SequenceTable::Borrow(SequenceId id, absl::string_view tenant,
                                                              absl::Time deadline) {
  std::shared_ptr<Slot> slot;
  const auto missing = [id] { return absl::NotFoundError(absl::StrCat("sequence_id: no sequence ", id.value())); };
  {
    MutexLock lock(mu_);
    const auto it = records_.find(id);
    const absl::Time now = clock_.Now();
    if (it == records_.end() || it->second.tenant != tenant || it->second.deadline <= now) return missing();
    if (it->second.session == 0) it->second.deadline = std::min(now + it->second.lease, it->second.end_of_life);
    slot = it->second.slot;
  }
  MutexLock lock(slot->mu);
  while (slot->in_use && !slot->closed) {
    const absl::Duration left = deadline - clock_.Now();
    if (left <= absl::ZeroDuration()) {
      return absl::DeadlineExceededError(
          absl::StrCat("sequence_id: another call used sequence ", id.value(), " until the deadline"));
    }
    slot->released.WaitFor(lock, std::min(left, kWaitStep));
  }
  if (slot->closed) return missing();
  slot->in_use = true;
  Sequence* const sequence = slot->sequence.get();
  return Borrowed(slot, sequence);
}

absl::StatusOr<absl::Time> SequenceTable::LeaseDeadline(SequenceId id) const {
  MutexLock lock(mu_);
  const auto it = records_.find(id);
  if (it == records_.end()) return absl::NotFoundError(absl::StrCat("sequence_id: no sequence ", id.value()));
  return it->second.deadline;
}

void SequenceTable::Drop(Record record) {
  std::unique_ptr<Sequence> closed;  // ends after the lock is released
  Slot& slot = *record.slot;
  {
    MutexLock lock(slot.mu);
    slot.closed = true;
    if (!slot.in_use) closed = std::move(slot.sequence);
  }
  slot.released.NotifyAll();
}

absl::Status SequenceTable::Close(SequenceId id, absl::string_view tenant) {
  Record record;
  {
    MutexLock lock(mu_);
    const auto it = records_.find(id);
    if (it == records_.end() || it->second.tenant != tenant) {
      return absl::NotFoundError(absl::StrCat("sequence_id: no sequence ", id.value()));
    }
    record = std::move(it->second);
    records_.erase(it);
  }
  Drop(std::move(record));
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> SequenceTable::OpenSession(absl::string_view tenant) {
  MutexLock lock(mu_);
  if (sessions_.size() >= options_.max_sessions) {
    return absl::ResourceExhaustedError(absl::StrCat("sessions: the limit of ", options_.max_sessions, " is reached"));
  }
  const uint64_t session = next_id_++;
  sessions_.emplace(session, tenant);
  return session;
}

void SequenceTable::CloseSession(uint64_t session) {
  std::vector<Record> dropped;
  {
    MutexLock lock(mu_);
    sessions_.erase(session);
    for (auto it = records_.begin(); it != records_.end();) {
      if (it->second.session == session) {
        dropped.push_back(std::move(it->second));
        records_.erase(it++);
      } else {
        ++it;
      }
    }
  }
  for (Record& record : dropped) Drop(std::move(record));
}

size_t SequenceTable::CloseExpired() {
  std::vector<Record> dropped;
  {
    MutexLock lock(mu_);
    const absl::Time now = clock_.Now();
    for (auto it = records_.begin(); it != records_.end();) {
      if (it->second.deadline <= now) {
        dropped.push_back(std::move(it->second));
        records_.erase(it++);
      } else {
        ++it;
      }
    }
  }
  for (Record& record : dropped) Drop(std::move(record));
  return dropped.size();
}

void SequenceTable::CloseAll() {
  absl::flat_hash_map<SequenceId, Record> all;
  {
    MutexLock lock(mu_);
    all.swap(records_);
  }
  for (auto& [id, record] : all) Drop(std::move(record));
}

size_t SequenceTable::open_sequences() const {
  MutexLock lock(mu_);
  return records_.size();
}

size_t SequenceTable::open_sessions() const {
  MutexLock lock(mu_);
  return sessions_.size();
}

}  // namespace kvmesh
