// Drafts without an engine: the answer of an earlier run stands in a file, and takes the place of the model.
//
//     recorded PROMPT ANSWER [NODES [HISTORY]]
//
// Tokens are the bytes of both files. Prints how many tokens each step accepts, and fails where the loop does not
// give the answer again. With a HISTORY, a file, the answer is drafted from it too, and is stored there afterwards.

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "coordgen.h"

#define VOCAB_SIZE 256
#define MOST_NODES 64

static void check(coordgen_status status, const char *call) {
  if (status != COORDGEN_STATUS_OK) {
    fprintf(stderr, "%s: %s: %s\n", call, coordgen_status_name(status), coordgen_last_error());
    exit(1);
  }
}

#define CHECK(call) check((call), #call)

// The file's bytes behind `tokens[num]`; gives their number.
static size_t read_bytes(const char *path, int32_t **tokens, size_t num) {
  FILE *file = fopen(path, "rb");
  if (file == NULL) {
    perror(path);
    exit(1);
  }
  size_t added = 0, room = 0;
  for (int byte; (byte = fgetc(file)) != EOF; added++) {
    if (added == room) {
      room = room ? 2 * room : 4096;
      *tokens = realloc(*tokens, (num + room) * sizeof **tokens);
      if (*tokens == NULL) abort();
    }
    (*tokens)[num + added] = byte;
  }
  fclose(file);
  return added;
}

// What the model says after the root and each node: here it is the rest of the answer. Gives the number of tokens
// said, the last of which was not drafted.
static size_t verify(const int32_t *tokens, const uint32_t *parents, size_t num_nodes,
                     const int32_t *rest, size_t num_rest) {
  size_t num_said = 0, node = 0;
  for (size_t next = 1; num_said < num_rest; next = node + 1) {
    int32_t said = rest[num_said++];
    while (next < num_nodes && (parents[next] != node || tokens[next] != said)) next++;
    if (next >= num_nodes) break;
    node = next;
  }
  return num_said;
}

int main(int argc, char **argv) {
  if (argc < 3) {
    fprintf(stderr, "usage: %s PROMPT ANSWER [NODES [HISTORY]]\n", argv[0]);
    return 2;
  }
  int32_t *text = NULL;
  size_t prompt_len = read_bytes(argv[1], &text, 0);
  size_t end = prompt_len + read_bytes(argv[2], &text, prompt_len);
  size_t capacity = argc > 3 ? strtoul(argv[3], NULL, 10) : 16;
  if (capacity > MOST_NODES) capacity = MOST_NODES;

  uint64_t history = 0, drafter = 0;
  if (argc > 4) CHECK(coordgen_history_open(argv[4], VOCAB_SIZE, 0, &history));
  coordgen_options options = {.size = sizeof options, .vocab_size = VOCAB_SIZE, .history = history};
  CHECK(coordgen_drafter_new(&options, &drafter));
  CHECK(coordgen_drafter_begin(drafter, text, prompt_len, NULL, 0));
  size_t num_steps[MOST_NODES + 1] = {0}, most = 0;
  for (size_t len = prompt_len; len < end;) {
    int32_t tokens[MOST_NODES];
    uint32_t parents[MOST_NODES];
    size_t num_nodes;
    CHECK(coordgen_drafter_propose_tree(drafter, tokens, parents, capacity, &num_nodes));
    size_t num_said = verify(tokens, parents, num_nodes, text + len, end - len);
    CHECK(coordgen_drafter_accept(drafter, text + len, num_said));
    len += num_said;
    num_steps[num_said]++;
    if (num_said > most) most = num_said;
  }

  coordgen_statistics counted;
  CHECK(coordgen_drafter_statistics(drafter, &counted));
  for (size_t num = 1; num <= most; num++) {
    if (num_steps[num]) printf("%zu steps of %zu tokens\n", num_steps[num], num);
  }
  printf("%zu tokens in %zu steps", end - prompt_len, counted.num_steps);
  if (counted.num_steps) printf(", %.2f a step", (double)(end - prompt_len) / counted.num_steps);
  printf("; %zu of %zu drafted tokens accepted\n", counted.num_accepted, counted.num_drafted);
  if (history) {
    CHECK(coordgen_history_append(history, text, end));
    CHECK(coordgen_history_close(history));
  }
  CHECK(coordgen_drafter_free(drafter));
  free(text);
  return counted.num_tokens == end ? 0 : 1;
}
