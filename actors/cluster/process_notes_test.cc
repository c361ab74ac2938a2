#include <signal.h>

#include "gtest/gtest.h"

#include "actors/cluster/process_notes_internal.h"
#include "base/machine.h"
#include "base/strings.h"

namespace penstock::actors {
namespace {

constexpr int kSshHasFailed = 255 << 8;

class ProcessNotesTest : public ::testing::Test {
 protected:
  ProcessNotesTest() {
    LaunchCommand far;
    far.rank = 1;
    far.arguments = {"/usr/bin/ssh"};
    far.remote_host = "far";
    notes_.OnLaunched(far);
    LaunchCommand here;
    here.rank = 2;
    here.arguments = {"penstock"};
    notes_.OnLaunched(here);
  }

  ProcessNotes notes_;
};

TEST_F(ProcessNotesTest, WhatHasStartedAProcessOnAHostIsNamedWithItsLastLine) {
  EXPECT_EQ(notes_.NoteOf(1, kSshHasFailed, ""), StrCat(" (ssh on ", HostName(), ")"));
  notes_.OnLine(1, "Welcome");
  notes_.OnLine(1, "No route to host\r");
  notes_.OnLine(2, "step 7");
  EXPECT_EQ(notes_.NoteOf(1, kSshHasFailed, ""),
            StrCat(" (ssh on ", HostName(), ": No route to host)"));
  // The status of the node.
  EXPECT_EQ(notes_.NoteOf(1, 1 << 8, ""), "");
  // Nothing has started it but this host, which knows all.
  EXPECT_EQ(notes_.NoteOf(2, kSshHasFailed, ""), "");
}

TEST_F(ProcessNotesTest, AnUnknownKeyOfAHostComesWithTheRemedy) {
  LaunchCommand far;
  far.rank = 3;
  far.arguments = {"ssh"};
  far.remote_host = "me@far";
  notes_.OnLaunched(far);
  notes_.OnLine(3, "Host key verification failed.\r");
  EXPECT_EQ(notes_.NoteOf(3, kSshHasFailed, ""),
            StrCat(" (ssh on ", HostName(), ": Host key verification failed. ssh on ", HostName(),
                   " does not trust the key of far: connect to it once by hand (ssh me@far), or "
                   "add its key there with ssh-keyscan far >> ~/.ssh/known_hosts)"));
}

TEST_F(ProcessNotesTest, WhatTheLauncherKnowsIsKept) {
  notes_.OnLine(1, OutOfMemoryLine());
  EXPECT_EQ(notes_.NoteOf(1, SIGKILL, ", as told"), ", as told");
  EXPECT_EQ(notes_.NoteOf(2, SIGKILL, ", as told"), ", as told");
}

TEST_F(ProcessNotesTest, TheLackOfMemoryIsToldOfWhatWasKilled) {
  EXPECT_EQ(notes_.NoteOf(1, SIGKILL, ""), "");
  notes_.OnLine(1, OutOfMemoryLine());
  notes_.OnLine(1, "Connection closed.");
  EXPECT_EQ(notes_.NoteOf(1, SIGKILL, ""), kProbablyOutOfMemory);
  EXPECT_EQ(notes_.NoteOf(1, (128 + SIGKILL) << 8, ""), kProbablyOutOfMemory);
  EXPECT_EQ(notes_.NoteOf(1, SIGTERM, ""), "");
}

}  // namespace
}  // namespace penstock::actors
