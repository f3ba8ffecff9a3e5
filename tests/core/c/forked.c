// A fork while another thread is inside calls: a child's calls on its parent's handles give a code, its own handles
// work, and the parent's go on.
//
//     forked FORKS HISTORY

#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "coordgen.h"

static uint64_t history, drafter;
static atomic_bool is_over;
static const int32_t text[] = {1, 2, 3, 4, 1, 2};
#define LEN (sizeof text / sizeof *text)

static void expect(coordgen_status got, coordgen_status expected, const char *call) {
  if (got == expected) return;
  fprintf(stderr, "%s: %s: %s\n", call, coordgen_status_name(got), coordgen_last_error());
  _exit(1);
}

#define EXPECT(call, name) expect((call), COORDGEN_STATUS_##name, #call)

static void *calls(void *nothing) {
  coordgen_history_counts counts;
  coordgen_statistics statistics;
  while (!is_over) {
    EXPECT(coordgen_history_statistics(history, &counts), OK);
    EXPECT(coordgen_drafter_statistics(drafter, &statistics), OK);
  }
  return nothing;
}

static void child(const char *path) {
  alarm(120);
  int32_t tokens[8];
  uint32_t parents[8];
  size_t num;
  uint64_t own = 0, in_memory = 0, other = 0;
  coordgen_statistics statistics;
  coordgen_history_counts counts;
  coordgen_options options = {.size = sizeof options, .vocab_size = 10};
  for (int round = 0; round < 2; round++) {  // before and after it has handles of its own
    EXPECT(coordgen_history_append(history, text, LEN), FORKED);
    EXPECT(coordgen_history_index(history), FORKED);
    EXPECT(coordgen_history_statistics(history, &counts), FORKED);
    EXPECT(coordgen_history_clear(history), FORKED);
    EXPECT(coordgen_history_close(history), FORKED);
    EXPECT(coordgen_drafter_begin(drafter, text, LEN, NULL, 0), FORKED);
    EXPECT(coordgen_drafter_propose_tree(drafter, tokens, parents, 8, &num), FORKED);
    EXPECT(coordgen_drafter_propose_chain(drafter, tokens, 8, &num), FORKED);
    EXPECT(coordgen_drafter_accept(drafter, text, 1), FORKED);
    EXPECT(coordgen_drafter_rewind(drafter, 1), FORKED);
    EXPECT(coordgen_drafter_follow(drafter, text, LEN), FORKED);
    EXPECT(coordgen_drafter_end(drafter), FORKED);
    EXPECT(coordgen_drafter_statistics(drafter, &statistics), FORKED);
    EXPECT(coordgen_drafter_free(drafter), FORKED);
    options.history = history;
    EXPECT(coordgen_drafter_new(&options, &other), FORKED);
    EXPECT(coordgen_history_open(path, 10, 0, &other), IN_USE);
    options.history = 0;
    if (round == 0) EXPECT(coordgen_drafter_new(&options, &own), OK);
    if (round == 0) EXPECT(coordgen_history_open(NULL, 10, 0, &in_memory), OK);
  }
  EXPECT(coordgen_history_append(in_memory, text, LEN), OK);
  EXPECT(coordgen_drafter_begin(own, text, LEN, NULL, 0), OK);
  EXPECT(coordgen_drafter_propose_chain(own, tokens, 3, &num), OK);
  if (num != 3 || tokens[1] != 3 || tokens[2] != 4) _exit(2);
  EXPECT(coordgen_drafter_free(own), OK);
  EXPECT(coordgen_history_close(in_memory), OK);
  _exit(0);
}

int main(int argc, char **argv) {
  if (argc < 3) return 2;
  coordgen_options options = {.size = sizeof options, .vocab_size = 10};
  EXPECT(coordgen_history_open(argv[2], 10, 0, &history), OK);
  EXPECT(coordgen_drafter_new(&options, &drafter), OK);
  EXPECT(coordgen_drafter_begin(drafter, text, LEN, NULL, 0), OK);
  pthread_t thread;
  if (pthread_create(&thread, NULL, calls, NULL)) return 2;
  for (int left = atoi(argv[1]); left > 0; left--) {
    EXPECT(coordgen_history_append(history, text, LEN), OK);
    pid_t process = fork();
    if (process == 0) child(argv[2]);
    int status;
    if (waitpid(process, &status, 0) != process || status != 0) {
      fprintf(stderr, "a child ended with %#x\n", status);
      return 1;
    }
  }
  is_over = true;
  pthread_join(thread, NULL);
  EXPECT(coordgen_drafter_free(drafter), OK);
  EXPECT(coordgen_history_close(history), OK);
  EXPECT(coordgen_history_open(argv[2], 10, 0, &history), OK);
  coordgen_history_counts counts;
  EXPECT(coordgen_history_statistics(history, &counts), OK);
  EXPECT(coordgen_history_close(history), OK);
  printf("%zu tokens, %zu dropped bytes\n", counts.num_tokens, (size_t)counts.num_dropped_bytes);
  return 0;
}
