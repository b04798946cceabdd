// Disks that lie, fill up or reach their cap: a miss by reason, never a wrong answer, and the rest is still served.
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mount.h>
#include <unistd.h>

#include <filesystem>
#include <random>

#include "tests/system/fault_fixture.h"

namespace kvmesh {
namespace {

constexpr uint64_t kBlockBytes = 32 << 10;  // of deploy/model with 16 tokens, fp32
constexpr uint64_t kSlotBytes = kBlockBytes + 4096;

// Flips one bit in every half slot of every slab file; how many.
size_t CorruptSlabs(const std::string& folder, std::mt19937_64& random) {
  size_t flipped = 0;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (!entry.is_regular_file() || entry.path().filename().string().rfind("slab", 0) != 0) continue;
    const int fd = open(entry.path().c_str(), O_RDWR | O_CLOEXEC);
    EXPECT_GE(fd, 0) << entry.path();
    for (uint64_t at = random() % (kSlotBytes / 2); at < entry.file_size(); at += kSlotBytes / 2) {
      char byte = 0;
      if (pread(fd, &byte, 1, static_cast<off_t>(at)) != 1) break;
      byte ^= 0x04;
      flipped += pwrite(fd, &byte, 1, static_cast<off_t>(at)) == 1 ? 1 : 0;
    }
    EXPECT_EQ(fsync(fd), 0);
    close(fd);
  }
  return flipped;
}

uint64_t Misses(ProcessCluster& cluster, const std::string& reason) {
  const auto stats = cluster.Stats(0);
  EXPECT_TRUE(stats.ok()) << stats.status();
  if (!stats.ok()) return 0;
  const auto found = stats->misses_by_reason().find(reason);
  return found == stats->misses_by_reason().end() ? 0 : found->second;
}

class DiskFaultTest : public FaultTest {
 protected:
  static WorkerConfig SmallWorker() {
    return {.device_blocks = kLongestPromptBlocks + 16, .host_blocks = 8, .disk = true};
  }
  uint64_t DiskBlocks() {
    const auto books = cluster_->DebugState(0);
    EXPECT_TRUE(books.ok()) << books.status();
    return books.ok() ? books->disk().used_blocks() : 0;
  }
  // What the worker's metric of one line says.
  std::string Metric(const std::string& name) {
    std::string text;
    EXPECT_TRUE(HttpGet(cluster_->ops_port(0), "/metrics", &text));
    const size_t at = text.find(absl::StrCat("\n", name, " "));
    if (at == std::string::npos) return "absent";
    const size_t begin = at + name.size() + 2;
    return text.substr(begin, text.find('\n', begin) - begin);
  }
  // Until a prompt under `salt` is asked after which the disk holds more than before.
  testing::AssertionResult AwaitDiskTakesBlocks(const std::string& salt) {
    int asked = 0;
    const bool takes = Await(absl::Seconds(10), [&] {
      const uint64_t before = DiskBlocks();
      const auto answer = AskUp(0, prompts_[0], absl::StrCat(salt, " ", asked++));
      EXPECT_TRUE(answer.ok()) << answer.status();
      return DiskBlocks() > before;
    });
    if (takes) return testing::AssertionSuccess();
    return testing::AssertionFailure() << "nothing is written to a disk that has room";
  }
};

TEST_F(DiskFaultTest, BytesFlippedOnDiskAreMissesErasedAndRecomputed) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({SmallWorker()}));
  std::mt19937_64 random(seed_);
  for (uint64_t round = 0; round < rounds_; ++round) {
    const std::string salt = absl::StrCat("flipped ", round);
    const Prompt& prompt = prompts_[round % prompts_.size()];
    const auto filled = AskUp(0, prompt, salt);
    ASSERT_TRUE(filled.ok()) << filled.status();
    ASSERT_TRUE(cluster_->RestartGently(0));
    ASSERT_GT(CorruptSlabs(cluster_->disk_dir(0), random), prompt.tokens.size() / 16);

    const auto answer = AskUp(0, prompt, salt);
    ASSERT_TRUE(answer.ok()) << answer.status();
    EXPECT_GT(Misses(*cluster_, "corrupt"), 0u);
    // What was wrong is gone: the recomputed blocks are found on the device, then on disk.
    const uint64_t corrupt = Misses(*cluster_, "corrupt");
    const auto again = AskUp(0, prompt, salt);
    ASSERT_TRUE(again.ok()) << again.status();
    EXPECT_GT(again->hits.device(), 0u);
    EXPECT_EQ(Misses(*cluster_, "corrupt"), corrupt);
    ASSERT_TRUE(cluster_->RestartGently(0));
    const auto from_disk = AskUp(0, prompt, salt);
    ASSERT_TRUE(from_disk.ok()) << from_disk.status();
    EXPECT_GT(from_disk->hits.disk(), 0u) << from_disk->hits.ShortDebugString();
    EXPECT_EQ(Misses(*cluster_, "corrupt"), 0u);
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
}

TEST_F(DiskFaultTest, BytesFlippedUnderARunningWorkersLoadNeverReachAnAnswer) {
  ASSERT_NO_FATAL_FAILURE(StartCluster({SmallWorker()}));
  std::mt19937_64 random(seed_);
  for (uint64_t round = 0; round < rounds_; ++round) {
    load_ = std::make_unique<Load>(*cluster_, prompts_, "load", 1, seed_ * 100 + round);
    ASSERT_TRUE(Await(absl::Seconds(20), [this] { return load_->answered() >= 8; }));
    CorruptSlabs(cluster_->disk_dir(0), random);
    const uint64_t answered = load_->answered();
    ASSERT_TRUE(Await(absl::Seconds(20), [&] { return load_->answered() >= answered + 8; }));
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  ExpectDiskServesAfterRestart(0);
}

TEST_F(DiskFaultTest, DiskAtItsCapEvictsAndStaysWithinIt) {
  constexpr uint64_t kCapSlots = 60;
  WorkerConfig worker = SmallWorker();
  worker.disk_bytes = kCapSlots * kSlotBytes;
  ASSERT_NO_FATAL_FAILURE(StartCluster({worker}));
  for (uint64_t round = 0; round < rounds_; ++round) {
    for (const Prompt& prompt : prompts_) {
      const auto answer =
          Ask(*cluster_, prompt, {.salt = absl::StrCat("cap ", round), .worker_id = cluster_->worker_id(0)});
      ASSERT_TRUE(answer.ok()) << answer.status();
    }
    const auto books = cluster_->DebugState(0);
    ASSERT_TRUE(books.ok()) << books.status();
    EXPECT_LE(books->disk().used_blocks(), kCapSlots);
    EXPECT_GT(books->disk().used_blocks(), 0u);
    uint64_t slab_bytes = 0;
    for (const auto& entry : std::filesystem::recursive_directory_iterator(cluster_->disk_dir(0))) {
      if (entry.path().filename().string().rfind("slab", 0) == 0) slab_bytes += entry.file_size();
    }
    EXPECT_LE(slab_bytes, worker.disk_bytes);
    ASSERT_NO_FATAL_FAILURE(Settle()) << "round " << round;
  }
  const auto stats = cluster_->Stats(0);
  ASSERT_TRUE(stats.ok()) << stats.status();
  EXPECT_GT(stats->evictions_by_tier().at("disk"), 0u);
  ExpectDiskServesAfterRestart(0);
}

// A small file system of its own, in a mount namespace that goes away with the test program.
class SmallFileSystem {
 public:
  explicit SmallFileSystem(const std::string& path) : path_(path) {
    std::filesystem::create_directory(path);
    mounted_ = geteuid() == 0 && unshare(CLONE_NEWNS) == 0 && mount("", "/", "", MS_PRIVATE | MS_REC, "") == 0 &&
               mount("tmpfs", path.c_str(), "tmpfs", 0, "size=48m") == 0;
  }
  ~SmallFileSystem() {
    if (mounted_) umount2(path_.c_str(), MNT_DETACH);
  }
  bool mounted() const { return mounted_; }
  // Writes until nothing more fits.
  void FillUp() const {
    const int fd = open((path_ + "/filler").c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    const std::string zeros(1 << 16, '\0');
    for (size_t size = zeros.size(); size > 0; size /= 2) {
      while (write(fd, zeros.data(), size) > 0) {
      }
    }
    close(fd);
  }
  void RemoveFiller() const { std::filesystem::remove(path_ + "/filler"); }

 private:
  const std::string path_;
  bool mounted_ = false;
};

TEST_F(DiskFaultTest, FullFileSystemUnderSlabsAndCatalogCostsHitsOnly) {
  TempDir folder;
  const SmallFileSystem small(folder / "small");
  if (!small.mounted()) GTEST_SKIP() << "needs the right to mount a tmpfs";
  WorkerConfig worker = SmallWorker();
  worker.disk_dir = folder / "small/disk";
  worker.disk_reserve_bytes = uint64_t{17} << 20;  // above twice the catalog's write buffer
  ASSERT_NO_FATAL_FAILURE(StartCluster({worker}));
  for (uint64_t round = 0; round < rounds_; ++round) {
    small.FillUp();
    for (const Prompt& prompt : prompts_) {
      const auto answer =
          Ask(*cluster_, prompt, {.salt = absl::StrCat("full ", round), .worker_id = cluster_->worker_id(0)});
      ASSERT_TRUE(answer.ok()) << answer.status();
    }
    ASSERT_NO_FATAL_FAILURE(Settle()) << "full, round " << round;
    small.RemoveFiller();
    // The disk takes blocks again, at the latest when its next attempt to heal is due.
    ASSERT_TRUE(AwaitDiskTakesBlocks(absl::StrCat("room ", round))) << "round " << round;
    ASSERT_NO_FATAL_FAILURE(Settle()) << "room again, round " << round;
  }
  ExpectDiskServesAfterRestart(0);
  cluster_.reset();
}

TEST_F(DiskFaultTest, FullFileSystemAtTheStartLeavesOutTheDiskUntilThereIsSpace) {
  TempDir folder;
  const SmallFileSystem small(folder / "small");
  if (!small.mounted()) GTEST_SKIP() << "needs the right to mount a tmpfs";
  WorkerConfig worker = SmallWorker();
  worker.disk_dir = folder / "small/disk";
  worker.disk_reserve_bytes = 0;
  small.FillUp();
  ASSERT_NO_FATAL_FAILURE(StartCluster({worker}));
  ASSERT_NO_FATAL_FAILURE(Settle()) << "a worker that has never had its disk";
  EXPECT_EQ(DiskBlocks(), 0u);
  EXPECT_EQ(Metric("kvmesh_worker_disk_writable"), "0");
  small.RemoveFiller();
  ASSERT_TRUE(AwaitDiskTakesBlocks("first"));
  EXPECT_EQ(Metric("kvmesh_worker_disk_writable"), "1");
  EXPECT_NE(Metric("kvmesh_worker_disk_errors_total"), "0");
  ASSERT_NO_FATAL_FAILURE(Settle());

  // The same with blocks on that disk: they are found again, without another restart.
  ASSERT_NO_FATAL_FAILURE(Fill(0, prompts_.back(), "held"));
  cluster_->worker(0).Signal(SIGTERM);
  ASSERT_EQ(cluster_->worker(0).AwaitExit(absl::Seconds(20)), 0);
  small.FillUp();
  ASSERT_TRUE(cluster_->StartWorker(0));
  ASSERT_NO_FATAL_FAILURE(Settle()) << "a worker that has not got its disk back yet";
  EXPECT_EQ(DiskBlocks(), 0u);
  small.RemoveFiller();
  ASSERT_NO_FATAL_FAILURE(AwaitHolder(0, prompts_.back(), "held"));
  const auto answer = AskUp(0, prompts_.back(), "held");
  ASSERT_TRUE(answer.ok()) << answer.status();
  EXPECT_GT(answer->hits.disk(), 0u) << answer->hits.ShortDebugString();
  ASSERT_NO_FATAL_FAILURE(Settle());
  cluster_.reset();
}

}  // namespace
}  // namespace kvmesh
