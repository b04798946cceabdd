#include "kvstore/service/signals.h"

#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

namespace kvmesh {
namespace {

// Signals change the whole process, so each test runs in a child; the exit code is what it saw. A child that waits on
// is ended by an alarm.
int RunInChild(int (*body)()) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body());
  }
  int status = 0;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

TEST(SignalsTest, TermAndIntEndTheWait) {
  EXPECT_EQ(RunInChild([] {
              BlockSignals();
              kill(getpid(), SIGTERM);
              return WaitForShutdown(nullptr);
            }),
            SIGTERM);
  EXPECT_EQ(RunInChild([] {
              BlockSignals();
              kill(getpid(), SIGINT);
              return WaitForShutdown(nullptr);
            }),
            SIGINT);
}

TEST(SignalsTest, HangupRunsTheCallbackAndWaitsOn) {
  EXPECT_EQ(RunInChild([] {
              BlockSignals();
              kill(getpid(), SIGHUP);
              int hangups = 0;
              const int number = WaitForShutdown([&hangups] {
                ++hangups;
                kill(getpid(), hangups < 3 ? SIGHUP : SIGTERM);
              });
              return number == SIGTERM ? hangups : 99;
            }),
            3);
}

TEST(SignalsTest, HangupWithoutACallbackIsIgnored) {
  EXPECT_EQ(RunInChild([] {
              BlockSignals();
              kill(getpid(), SIGHUP);
              kill(getpid(), SIGTERM);
              return WaitForShutdown(nullptr);
            }),
            SIGTERM);
}

TEST(SignalsTest, WriteToAClosedPipeIsAnErrorOnly) {
  EXPECT_EQ(RunInChild([] {
              BlockSignals();
              int ends[2];
              if (pipe(ends) != 0) return 99;
              close(ends[0]);
              return write(ends[1], "x", 1) == -1 ? 7 : 98;
            }),
            7);
}

}  // namespace
}  // namespace kvmesh
