// The open sequences of one worker: each lives by its lease, or by the client session that opened it.
#ifndef KVMESH_WORKER_ENGINE_SEQUENCE_TABLE_H_
#define KVMESH_WORKER_ENGINE_SEQUENCE_TABLE_H_

#include <cstdint>
#include <memory>
#include <string>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/string_view.h"
#include "absl/time/time.h"
#include "kvstore/base/clock.h"
#include "kvstore/base/mutex.h"
#include "kvstore/base/strong_int.h"
#include "worker/engine/sequence.h"

namespace kvmesh {

// Thread safe. A sequence is used by one call at a time; one that is closed meanwhile goes when that call ends, and
// closing never waits for it. Sequences and sessions belong to the tenant that opened them;
// for any other they do not exist (NOT_FOUND).
class SequenceTable {
 public:
  struct Options {
    size_t max_sequences = 4096;
    size_t max_sessions = 256;
    absl::Duration default_lease = absl::Seconds(30);
    absl::Duration max_lease = absl::Minutes(10);
    absl::Duration max_life = absl::Hours(1);  // of any sequence, renewed or in a session
  };

  SequenceTable(const Options& options, const Clock& clock) : options_(options), clock_(clock) {}

 private:
  // open -> in use -> open ... -> closed, whether in use or not.
  struct Slot {
    Mutex mu;
    CondVar released;
    bool in_use ABSL_GUARDED_BY(mu) = false;
    bool closed ABSL_GUARDED_BY(mu) = false;
    std::unique_ptr<Sequence> sequence ABSL_GUARDED_BY(mu);
  };

 public:
  // Exclusive use of one sequence; the others wait.
  class Borrowed {
   public:
    Borrowed(Borrowed&&) = default;
    Borrowed& operator=(Borrowed&&) = delete;
    ~Borrowed();
    Sequence* operator->() const { return sequence_; }
    Sequence& operator*() const { return *sequence_; }

   private:
    friend class SequenceTable;
    Borrowed(std::shared_ptr<Slot> slot, Sequence* sequence) : slot_(std::move(slot)), sequence_(sequence) {}

    std::shared_ptr<Slot> slot_;
    Sequence* sequence_;
  };

  // What Insert would refuse, to be asked before the work of a resume.
  absl::Status CheckRoom(uint64_t session, absl::Duration lease, absl::string_view tenant) const;
  // `session` 0: by lease alone. A zero `lease` is the default. NOT_FOUND: no such session. INVALID_ARGUMENT: lease_ms
  // above the maximum. RESOURCE_EXHAUSTED as above.
  absl::StatusOr<SequenceId> Insert(std::unique_ptr<Sequence> sequence, uint64_t session, absl::Duration lease,
                                    absl::string_view tenant);
  // Renews the lease. NOT_FOUND: no such sequence, closed or expired. DEADLINE_EXCEEDED: another call used it until
  // then.
  absl::StatusOr<Borrowed> Borrow(SequenceId id, absl::string_view tenant, absl::Time deadline);
  absl::StatusOr<absl::Time> LeaseDeadline(SequenceId id) const;
  // NOT_FOUND: no such sequence.
  absl::Status Close(SequenceId id, absl::string_view tenant);

  // RESOURCE_EXHAUSTED: max_sessions are open.
  absl::StatusOr<uint64_t> OpenSession(absl::string_view tenant);
  // Closes the session and all its sequences.
  void CloseSession(uint64_t session);
  // Closes what has expired; returns how many.
  size_t CloseExpired();
  void CloseAll();

  size_t open_sequences() const;
  size_t open_sessions() const;

 private:
  struct Record {
    std::shared_ptr<Slot> slot;
    std::string tenant;
    uint64_t session = 0;
    absl::Duration lease;
    absl::Time deadline;
    absl::Time end_of_life;
  };

  static void Drop(Record record);
  absl::Status Check(uint64_t session, absl::Duration lease, absl::string_view tenant) const
      ABSL_EXCLUSIVE_LOCKS_REQUIRED(mu_);

  const Options options_;
  const Clock& clock_;
  mutable Mutex mu_;
  absl::flat_hash_map<SequenceId, Record> records_ ABSL_GUARDED_BY(mu_);
  absl::flat_hash_map<uint64_t, std::string> sessions_ ABSL_GUARDED_BY(mu_);  // to tenants
  uint64_t next_id_ ABSL_GUARDED_BY(mu_) = 1;
};

}  // namespace kvmesh

#endif  // KVMESH_WORKER_ENGINE_SEQUENCE_TABLE_H_
